//! The picture as PNG. tiny-skia draws the shapes; letters come from a font that is compiled in, so that none need be installed.

use super::{Anchor, BLACK, Canvas, Color, Point};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{FillRule, Paint, Path, PathBuilder, Pixmap, PremultipliedColorU8, Stroke, Transform};

/// Pixels per unit.
const SCALE: f64 = 2.0;
const HEIGHT: RasterHeight = RasterHeight::Size24;
const WEIGHT: FontWeight = FontWeight::Regular;
/// Rows of a letter's picture above the base line.
const BASE_LINE: i64 = 18;

pub struct Png {
    pixels: Pixmap,
}

impl Png {
    /// `None` if there is no memory for a picture of that size.
    pub fn new((width, height): (f64, f64)) -> Option<Self> {
        let mut pixels = Pixmap::new((width * SCALE) as u32, (height * SCALE) as u32)?;
        pixels.fill(tiny_skia::Color::WHITE);
        Some(Png { pixels })
    }

    pub fn finish(self) -> Option<Vec<u8>> {
        self.pixels.encode_png().ok()
    }

    fn letters(&mut self, text: &str, color: Color, place: impl Fn(i64, i64) -> (i64, i64)) {
        for (index, letter) in text.chars().enumerate() {
            let Some(raster) = get_raster(letter, WEIGHT, HEIGHT).or(get_raster('?', WEIGHT, HEIGHT)) else { continue };
            let left = (index * get_raster_width(WEIGHT, HEIGHT)) as i64;
            for (row, line) in raster.rows().enumerate() {
                for (column, &strength) in line.iter().enumerate() {
                    let (x, y) = place(left + column as i64, row as i64 - BASE_LINE);
                    self.blend(x, y, color, strength);
                }
            }
        }
    }

    /// Lays `strength` 255ths of a colour over a pixel; the picture is opaque everywhere.
    fn blend(&mut self, x: i64, y: i64, color: Color, strength: u8) {
        let (width, height) = (i64::from(self.pixels.width()), i64::from(self.pixels.height()));
        if strength == 0 || !(0..width).contains(&x) || !(0..height).contains(&y) {
            return;
        }
        let pixel = &mut self.pixels.pixels_mut()[(y * width + x) as usize];
        let mix = |new: u8, old: u8| {
            let (new, old, share) = (u32::from(new), u32::from(old), u32::from(strength));
            ((new * share + old * (255 - share)) / 255) as u8
        };
        let [red, green, blue] = color;
        let mixed = (mix(red, pixel.red()), mix(green, pixel.green()), mix(blue, pixel.blue()));
        if let Some(mixed) = PremultipliedColorU8::from_rgba(mixed.0, mixed.1, mixed.2, 255) {
            *pixel = mixed;
        }
    }
}

fn path(points: &[Point]) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for (index, &(x, y)) in points.iter().enumerate() {
        let (x, y) = ((x * SCALE) as f32, (y * SCALE) as f32);
        if index == 0 { builder.move_to(x, y) } else { builder.line_to(x, y) }
    }
    builder.finish()
}

fn paint(color: Color) -> Paint<'static> {
    let mut paint = Paint::default();
    paint.set_color_rgba8(color[0], color[1], color[2], 255);
    paint
}

fn width_of(text: &str) -> i64 {
    (text.chars().count() * get_raster_width(WEIGHT, HEIGHT)) as i64
}

fn pixel(unit: f64) -> i64 {
    (unit * SCALE).round() as i64
}

impl Canvas for Png {
    fn polyline(&mut self, points: &[Point], color: Color, width: f64) {
        if let Some(path) = path(points) {
            let stroke = Stroke { width: (width * SCALE) as f32, ..Stroke::default() };
            self.pixels.stroke_path(&path, &paint(color), &stroke, Transform::identity(), None);
        }
    }

    fn polygon(&mut self, points: &[Point], color: Color) {
        if let Some(path) = path(points) {
            self.pixels.fill_path(&path, &paint(color), FillRule::Winding, Transform::identity(), None);
        }
    }

    fn text(&mut self, (x, y): Point, text: &str, anchor: Anchor, color: Color) {
        let left = pixel(x)
            - match anchor {
                Anchor::Start => 0,
                Anchor::Middle => width_of(text) / 2,
                Anchor::End => width_of(text),
            };
        let base = pixel(y);
        self.letters(text, color, |column, row| (left + column, base + row));
    }

    fn text_upwards(&mut self, (x, y): Point, text: &str) {
        let (base, bottom) = (pixel(x), pixel(y) + width_of(text) / 2);
        self.letters(text, BLACK, |column, row| (base + row, bottom - column));
    }
}
