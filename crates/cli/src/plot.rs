//! Miss-ratio curves as a picture: layout here, drawing in `plot/svg.rs` and `plot/png.rs`, which get the same calls.
//!
//! The colours are those of Okabe and Ito ("Color Universal Design", 2008) without yellow, which is hardly visible on white. Each
//! curve also has a marker of its own shape, so that colour is never the only difference.

mod png;
mod svg;

use std::fmt;
use std::path::Path;

/// A curve.
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Memory in pages, and miss ratio; in rising order of memory.
    pub points: Vec<(f64, f64)>,
}

/// The curves of one trace.
pub struct Panel {
    /// What stands above it.
    pub title: String,
    /// Bytes of a page, for the axis.
    pub page: String,
    /// The curves.
    pub series: Vec<Series>,
}

/// How a picture is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Scalable Vector Graphics.
    Svg,
    /// Portable Network Graphics, in twice the size of the SVG.
    Png,
}

impl Kind {
    /// By the name's suffix.
    pub fn of_name(name: &Path) -> Option<Kind> {
        match name.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "svg" => Some(Kind::Svg),
            "png" => Some(Kind::Png),
            _ => None,
        }
    }
}

type Color = [u8; 3];
type Point = (f64, f64);

const BLACK: Color = [0, 0, 0];
const GREY: Color = [110, 110, 110];
const GRID: Color = [225, 225, 225];
const PALETTE: [Color; 7] = [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [230, 159, 0], [86, 180, 233], [0, 0, 0]];

/// Marker shapes. Their number has no divisor in common with that of the colours, so 56 curves look different.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
    Plus,
    TriangleDown,
    Ring,
}

const MARKERS: [Marker; 8] = [
    Marker::Circle,
    Marker::Square,
    Marker::Triangle,
    Marker::Diamond,
    Marker::Cross,
    Marker::Plus,
    Marker::TriangleDown,
    Marker::Ring,
];

impl Marker {
    /// Lines that make it up, around the origin; a closed one is filled.
    fn shape(self, r: f64) -> (Vec<Vec<Point>>, bool) {
        let round =
            |r: f64| (0..=24).map(|n| f64::from(n) / 24.0 * std::f64::consts::TAU).map(|a| (r * a.cos(), r * a.sin())).collect();
        match self {
            Marker::Circle => (vec![round(r)], true),
            Marker::Ring => (vec![round(r)], false),
            Marker::Square => (vec![vec![(-r, -r), (r, -r), (r, r), (-r, r), (-r, -r)]], true),
            Marker::Diamond => {
                (vec![vec![(0.0, -1.3 * r), (1.3 * r, 0.0), (0.0, 1.3 * r), (-1.3 * r, 0.0), (0.0, -1.3 * r)]], true)
            }
            Marker::Triangle => (vec![vec![(0.0, -1.2 * r), (1.2 * r, r), (-1.2 * r, r), (0.0, -1.2 * r)]], true),
            Marker::TriangleDown => (vec![vec![(0.0, 1.2 * r), (1.2 * r, -r), (-1.2 * r, -r), (0.0, 1.2 * r)]], true),
            Marker::Cross => (vec![vec![(-r, -r), (r, r)], vec![(-r, r), (r, -r)]], false),
            Marker::Plus => (vec![vec![(-1.2 * r, 0.0), (1.2 * r, 0.0)], vec![(0.0, -1.2 * r), (0.0, 1.2 * r)]], false),
        }
    }
}

/// The position of a text relative to its point.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Anchor {
    Start,
    Middle,
    End,
}

/// Draws shapes and texts. Units are pixels of the SVG, y downwards; a text's point is on its base line.
trait Canvas {
    fn polyline(&mut self, points: &[Point], color: Color, width: f64);
    fn polygon(&mut self, points: &[Point], color: Color);
    fn text(&mut self, at: Point, text: &str, anchor: Anchor, color: Color);
    /// From the bottom to the top, centred at the point.
    fn text_upwards(&mut self, at: Point, text: &str);
}

const WIDTH: f64 = 960.0;
const PANEL_HEIGHT: f64 = 440.0;
/// Around the plotting area of a panel.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 62.0;
/// Height of a line of text.
const LINE: f64 = 18.0;
/// Width of a character of the monospaced font.
const CHARACTER: f64 = 7.0;

/// Draws the panels one below the other.
pub fn draw(panels: &[Panel], kind: Kind) -> Result<Vec<u8>, fmt::Error> {
    let heights: Vec<f64> = panels.iter().map(|panel| PANEL_HEIGHT.max(TOP + BOTTOM + LINE * panel.series.len() as f64)).collect();
    let size = (WIDTH, heights.iter().sum());
    match kind {
        Kind::Svg => {
            let mut canvas = svg::Svg::new(size);
            draw_on(&mut canvas, panels, &heights);
            Ok(canvas.finish().into_bytes())
        }
        Kind::Png => {
            let mut canvas = png::Png::new(size).ok_or(fmt::Error)?;
            draw_on(&mut canvas, panels, &heights);
            canvas.finish().ok_or(fmt::Error)
        }
    }
}

fn draw_on(canvas: &mut dyn Canvas, panels: &[Panel], heights: &[f64]) {
    let mut top = 0.0;
    for (panel, &height) in panels.iter().zip(heights) {
        draw_panel(canvas, panel, top, height);
        top += height;
    }
}

fn draw_panel(canvas: &mut dyn Canvas, panel: &Panel, top: f64, height: f64) {
    let all = || panel.series.iter().flat_map(|series| &series.points);
    let low = all().map(|point| point.0).reduce(f64::min).unwrap_or(1.0).max(1.0);
    // A single size still has an axis.
    let high = all().map(|point| point.0).fold(low, f64::max).max(low * 2.0);
    let step = nice_step(all().map(|point| point.1).fold(0.0, f64::max).max(1e-9));
    let y_max = (all().map(|point| point.1).fold(0.0, f64::max) / step).ceil().max(1.0) * step;

    let (x0, x1) = (LEFT, WIDTH - RIGHT);
    let (y0, y1) = (top + height - BOTTOM, top + TOP);
    let x = |memory: f64| x0 + (memory.max(1.0) / low).ln() / (high / low).ln() * (x1 - x0);
    let y = |ratio: f64| y0 - ratio / y_max * (y0 - y1);

    canvas.text((x0, top + 24.0), &panel.title, Anchor::Start, BLACK);
    let ticks = (0..).map(|n| f64::from(n) * step).take_while(|ratio| *ratio <= y_max * 1.0001);
    for ratio in ticks {
        canvas.polyline(&[(x0, y(ratio)), (x1, y(ratio))], GRID, 1.0);
        canvas.text((x0 - 8.0, y(ratio) + 5.0), &ratio_label(ratio, step), Anchor::End, GREY);
    }
    for memory in memory_ticks(low, high) {
        canvas.polyline(&[(x(memory), y0), (x(memory), y1)], GRID, 1.0);
        canvas.text((x(memory), y0 + 20.0), &short(memory), Anchor::Middle, GREY);
    }
    canvas.polyline(&[(x0, y1), (x0, y0), (x1, y0)], GREY, 1.0);
    canvas.text(((x0 + x1) / 2.0, y0 + 46.0), &format!("memory (pages of {}, logarithmic)", panel.page), Anchor::Middle, BLACK);
    canvas.text_upwards((18.0, (y0 + y1) / 2.0), "miss ratio (faults / references)");

    for (index, series) in panel.series.iter().enumerate() {
        let (color, marker) = (PALETTE[index % PALETTE.len()], MARKERS[index % MARKERS.len()]);
        let points: Vec<Point> = series.points.iter().map(|&(memory, ratio)| (x(memory), y(ratio))).collect();
        canvas.polyline(&points, color, 1.6);
        points.iter().for_each(|&point| draw_marker(canvas, marker, point, color));

        let line = y1 + 6.0 + LINE * index as f64;
        canvas.polyline(&[(x1 + 14.0, line), (x1 + 40.0, line)], color, 1.6);
        draw_marker(canvas, marker, (x1 + 27.0, line), color);
        canvas.text((x1 + 48.0, line + 5.0), &shorten(&series.name, ((RIGHT - 50.0) / CHARACTER) as usize), Anchor::Start, BLACK);
    }
}

fn draw_marker(canvas: &mut dyn Canvas, marker: Marker, at: Point, color: Color) {
    let (lines, filled) = marker.shape(4.0);
    for line in lines {
        let line: Vec<Point> = line.into_iter().map(|(x, y)| (at.0 + x, at.1 + y)).collect();
        if filled { canvas.polygon(&line, color) } else { canvas.polyline(&line, color, 1.6) }
    }
}

/// A step of 1, 2 or 5 times a power of ten that cuts `range` into about six.
fn nice_step(range: f64) -> f64 {
    let power = 10f64.powf((range / 6.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * power).find(|step| range / step <= 6.0).unwrap_or(10.0 * power)
}

/// A multiple of `step` with all its digits, at most seven characters: there is no room for more.
fn ratio_label(ratio: f64, step: f64) -> String {
    // The bit less is for steps such as 0.01, whose logarithm may be a bit more than -2.
    let digits = (-step.log10() - 1e-6).ceil().max(2.0) as usize;
    match digits {
        2..=4 => format!("{ratio:.digits$}"),
        _ if ratio == 0.0 => "0".into(),
        // One digit after the point is enough for up to six times 1, 2 or 5.
        _ => format!("{ratio:.1e}"),
    }
}

/// Memory sizes for the axis: powers of ten, or with few of them, 1, 2 and 5 times powers of ten. The ends, if hardly any of these
/// lie between them: a single label tells nothing about a logarithmic axis.
fn memory_ticks(low: f64, high: f64) -> Vec<f64> {
    let factors: &[f64] = if high / low > 3e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = (0..=18).map(|power| 10f64.powi(power));
    let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * power));
    let ticks: Vec<f64> = all.filter(|tick| (low..=high).contains(tick)).collect();
    if ticks.len() < 2 { vec![low, high] } else { ticks }
}

/// 1500 as 1.5k.
fn short(number: f64) -> String {
    let (value, unit) = match number {
        n if n >= 1e9 => (n / 1e9, "G"),
        n if n >= 1e6 => (n / 1e6, "M"),
        n if n >= 1e3 => (n / 1e3, "k"),
        n => (n, ""),
    };
    format!("{value}{unit}")
}

/// At most `length` characters of a name; the middle is left out.
fn shorten(name: &str, length: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= length {
        return name.to_owned();
    }
    let half = (length - 2) / 2;
    letters[..half].iter().chain(&['.', '.']).chain(&letters[letters.len() - half..]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(curves: usize) -> Panel {
        let series = (0..curves).map(|n| Series {
            name: format!("policy-{n}<&>"),
            points: vec![(10.0, 0.5 + n as f64 / 100.0), (100.0, 0.3), (1000.0, 0.1)],
        });
        Panel { title: "a trace <&>".into(), page: "4.00 KiB".into(), series: series.collect() }
    }

    #[test]
    fn an_svg_is_well_formed_and_labelled() {
        let text = String::from_utf8(draw(&[panel(17), panel(1)], Kind::Svg).unwrap()).unwrap();
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        for label in ["miss ratio", "memory (pages of 4.00 KiB", "policy-16&lt;&amp;&gt;", "a trace &lt;&amp;&gt;"] {
            assert!(text.contains(label), "{label}");
        }
        assert_eq!(text.matches("<text").count(), text.matches("</text>").count());
        assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
    }

    #[test]
    fn a_png_has_curves_of_all_colours() {
        let bytes = draw(&[panel(7)], Kind::Png).unwrap();
        let picture = tiny_skia::Pixmap::decode_png(&bytes).unwrap();
        assert_eq!((picture.width(), picture.height()), (2 * WIDTH as u32, 2 * PANEL_HEIGHT as u32));
        for color in PALETTE {
            let found = picture.pixels().iter().any(|pixel| [pixel.red(), pixel.green(), pixel.blue()] == color);
            assert!(found, "{color:?}");
        }
    }

    #[test]
    fn curves_differ_in_colour_or_marker() {
        let mut looks: Vec<_> = (0..56).map(|n| (PALETTE[n % 7], MARKERS[n % 8] as u8)).collect();
        looks.sort();
        looks.dedup();
        assert_eq!(looks.len(), 56);
    }

    #[test]
    fn extreme_values_are_drawn() {
        for points in [vec![], vec![(1.0, 0.0)], vec![(1.0, 1.0), (4e9, 0.0)]] {
            let panel = Panel { title: String::new(), page: "1 B".into(), series: vec![Series { name: "x".repeat(200), points }] };
            let text = String::from_utf8(draw(&[panel], Kind::Svg).unwrap()).unwrap();
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
        }
    }

    /// The labels of each axis, from the SVG.
    fn labels(points: &[Point]) -> (Vec<String>, Vec<String>) {
        let series = vec![Series { name: "lru".into(), points: points.to_vec() }];
        let panel = Panel { title: "t".into(), page: "4.00 KiB".into(), series };
        let text = String::from_utf8(draw(&[panel], Kind::Svg).unwrap()).unwrap();
        let of = |anchor: &str| {
            let mark = format!("text-anchor=\"{anchor}\" fill=\"#6e6e6e\">");
            text.split(mark.as_str()).skip(1).map(|rest| rest[..rest.find('<').unwrap()].to_owned()).collect()
        };
        (of("end"), of("middle"))
    }

    /// A curve with small miss ratios had the labels 0.000 0.000 0.001, and one from 2100 to 4200 pages had no memory at all.
    #[test]
    fn labels_tell_the_scale() {
        let (ratios, sizes) = labels(&[(2100.0, 0.0011), (4200.0, 0.0002)]);
        assert_eq!(ratios, ["0.0000", "0.0002", "0.0004", "0.0006", "0.0008", "0.0010", "0.0012"]);
        assert_eq!(sizes, ["2.1k", "4.2k"]);
        for exponent in 0..10 {
            for factor in [1.0, 1.3, 2.0, 2.7, 4.0, 5.0, 6.3, 9.0] {
                let (ratios, _) = labels(&[(10.0, factor * 10f64.powi(-exponent))]);
                let values: Vec<f64> = ratios.iter().map(|label| label.parse().unwrap()).collect();
                let step = values[1];
                let even = |(n, value): (usize, &f64)| (value - n as f64 * step).abs() < step / 1000.0;
                assert!(step > 0.0 && values.iter().enumerate().all(even), "{factor} {exponent}: {ratios:?}");
                assert!(ratios.iter().all(|label| label.len() <= 7), "{ratios:?}");
            }
        }
        for low in 1..1000 {
            assert!(labels(&[(f64::from(low), 1.0)]).1.len() >= 2, "{low}");
        }
    }

    /// A file's name may have any character. An SVG with a form feed in it is not shown by any browser.
    #[test]
    fn names_with_control_characters() {
        let mut odd = panel(1);
        odd.title = "a\u{c}b\u{1b}\0\u{ffff}".into();
        let text = String::from_utf8(draw(&[odd], Kind::Svg).unwrap()).unwrap();
        assert!(text.contains(">a\u{fffd}b\u{fffd}\u{fffd}\u{fffd}<"), "{text}");
    }

    #[test]
    fn steps_and_sizes_are_round() {
        assert_eq!(nice_step(1.0), 0.2);
        assert!((nice_step(0.031) - 0.01).abs() < 1e-12);
        assert_eq!(short(1500.0), "1.5k");
        assert_eq!(short(2e6), "2M");
        assert_eq!(memory_ticks(10.0, 100.0), [10.0, 20.0, 50.0, 100.0]);
    }
}
