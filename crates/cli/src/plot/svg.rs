//! The picture as SVG.

use super::{Anchor, Canvas, Color, Point};
use std::fmt::Write;

pub struct Svg {
    text: String,
}

impl Svg {
    pub fn new((width, height): (f64, f64)) -> Self {
        let mut svg = Svg { text: String::new() };
        svg.put(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"'Noto Sans Mono', 'DejaVu Sans Mono', monospace\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
        ));
        svg
    }

    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn put(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes everything");
    }
}

fn hex(color: Color) -> String {
    format!("#{:02x}{:02x}{:02x}", color[0], color[1], color[2])
}

fn list(points: &[Point]) -> String {
    points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect::<Vec<_>>().join(" ")
}

/// Control characters and the two that are none cannot be in XML, not even escaped.
fn escape(text: &str) -> String {
    let text = text.replace(|letter: char| letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}'), "\u{fffd}");
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Canvas for Svg {
    fn polyline(&mut self, points: &[Point], color: Color, width: f64) {
        let (points, color) = (list(points), hex(color));
        self.put(format_args!("<polyline points=\"{points}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"{width}\"/>"));
    }

    fn polygon(&mut self, points: &[Point], color: Color) {
        self.put(format_args!("<polygon points=\"{}\" fill=\"{}\"/>", list(points), hex(color)));
    }

    fn text(&mut self, (x, y): Point, text: &str, anchor: Anchor, color: Color) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let (color, text) = (hex(color), escape(text));
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{text}</text>"));
    }

    fn text_upwards(&mut self, (x, y): Point, text: &str) {
        let text = escape(text);
        self.put(format_args!("<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" text-anchor=\"middle\">{text}</text>"));
    }
}
