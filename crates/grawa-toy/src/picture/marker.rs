//! Marker shapes, drawn as polygons: a method can be recognised by its shape where colours fail.
//!
//! Every shape fits into the circle of its radius: markers at a distance of two radii never touch.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI, TAU};

use super::palette::{self, Rgb, WHITE};
use super::pen::{Point, fine};
use super::{Canvas, FINE, Shape};

/// A marker's shape: corners that repeat around a centre.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marker {
    /// How often the corners repeat.
    repeat: u8,
    /// The angle of the first.
    turn: f64,
    /// The angles of the corners after that, and their reach: shapes with much area are drawn smaller, so that all carry about
    /// the same weight.
    corners: &'static [(f64, f64)],
}

/// The arms of a cross are 0.36 times as wide as long, on either side of their axis.
const ARMS: &[(f64, f64)] = &[(-0.345_555_88, 1.0), (0.345_555_88, 1.0), (FRAC_PI_4, 0.479_016_51)];

impl Marker {
    /// A disc.
    pub const CIRCLE: Marker = Marker::polygon(28, 0.0, &[(0.0, 0.82)]);
    /// An upright square.
    pub const SQUARE: Marker = Marker::polygon(4, FRAC_PI_4, &[(0.0, 0.98)]);
    /// A square on its tip.
    pub const DIAMOND: Marker = Marker::polygon(4, 0.0, &[(0.0, 1.0)]);
    /// A triangle that points up.
    pub const UP: Marker = Marker::polygon(3, FRAC_PI_2, &[(0.0, 1.0)]);
    /// A triangle that points down.
    pub const DOWN: Marker = Marker::polygon(3, -FRAC_PI_2, &[(0.0, 1.0)]);
    /// A triangle that points left.
    pub const LEFT: Marker = Marker::polygon(3, PI, &[(0.0, 1.0)]);
    /// A triangle that points right.
    pub const RIGHT: Marker = Marker::polygon(3, 0.0, &[(0.0, 1.0)]);
    /// A pentagon.
    pub const PENTAGON: Marker = Marker::polygon(5, FRAC_PI_2, &[(0.0, 0.93)]);
    /// A hexagon.
    pub const HEXAGON: Marker = Marker::polygon(6, 0.0, &[(0.0, 0.9)]);
    /// A star with five tips.
    pub const STAR: Marker = Marker::polygon(5, FRAC_PI_2, &[(0.0, 1.0), (PI / 5.0, 0.5)]);
    /// An upright cross.
    pub const PLUS: Marker = Marker::polygon(4, 0.0, ARMS);
    /// A cross on its side.
    pub const CROSS: Marker = Marker::polygon(4, FRAC_PI_4, ARMS);

    /// A star with four tips.
    pub const SPARK: Marker = Marker::polygon(4, 0.0, &[(0.0, 1.0), (FRAC_PI_4, 0.42)]);
    /// A star with three tips.
    pub const TRIPOD: Marker = Marker::polygon(3, FRAC_PI_2, &[(0.0, 1.0), (PI / 3.0, 0.34)]);
    /// A star with six tips.
    pub const SNOW: Marker = Marker::polygon(6, FRAC_PI_2, &[(0.0, 1.0), (PI / 6.0, 0.5)]);
    /// A flat bar.
    pub const BAR: Marker = Marker::polygon(2, 0.0, &[(-0.4, 1.0), (0.4, 1.0)]);

    const fn polygon(repeat: u8, turn: f64, corners: &'static [(f64, f64)]) -> Self {
        Marker { repeat, turn, corners }
    }

    /// The corners of the shape around a point, in canvas units; the radius is in pixels.
    pub fn outline(self, centre: Point, radius: f64) -> Vec<(i32, i32)> {
        let (x, y) = fine(centre);
        let corner = |(repeat, &(angle, reach)): (u8, &(f64, f64))| {
            let angle = self.turn + TAU * f64::from(repeat) / f64::from(self.repeat) + angle;
            let reach = radius * FINE * reach;
            // Picture rows grow downwards, angles upwards.
            let (dx, dy) = (reach * libm::cos(angle), -reach * libm::sin(angle));
            (x + dx.round() as i32, y + dy.round() as i32)
        };
        let repeats = (0..self.repeat).flat_map(|repeat| self.corners.iter().map(move |it| (repeat, it)));
        repeats.map(corner).collect()
    }

    /// Draws the shape, filled, with a dark line and a white rim that separate it from what lies below.
    pub fn fill(self, root: &Canvas, at: Point, radius: f64, colour: Rgb) {
        self.trace(root, at, radius, WHITE, 0.4);
        root.draw(Shape::Polygon(self.outline(at, radius)), colour);
        self.trace(root, at, radius, palette::mix(colour, Rgb(0, 0, 0), 0.5), 0.1);
    }

    /// Draws the shape as an outline in `colour` around white.
    pub fn hollow(self, root: &Canvas, at: Point, radius: f64, colour: Rgb) {
        root.draw(Shape::Polygon(self.outline(at, radius)), WHITE);
        self.trace(root, at, 0.84 * radius, colour, 0.32 / 0.84);
    }

    /// Draws the outline with a line of this width, as a share of the radius.
    fn trace(self, root: &Canvas, at: Point, radius: f64, colour: Rgb, width: f64) {
        let mut ring = self.outline(at, radius);
        ring.extend(ring.first().copied());
        let width = (FINE * radius * width).round().max(1.0) as u32;
        root.draw(Shape::Line(ring, width), colour);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Marker; 16] = [
        Marker::CIRCLE,
        Marker::SQUARE,
        Marker::DIAMOND,
        Marker::UP,
        Marker::DOWN,
        Marker::LEFT,
        Marker::RIGHT,
        Marker::PENTAGON,
        Marker::HEXAGON,
        Marker::STAR,
        Marker::PLUS,
        Marker::CROSS,
        Marker::SPARK,
        Marker::TRIPOD,
        Marker::SNOW,
        Marker::BAR,
    ];

    #[test]
    fn every_shape_stays_in_its_circle_and_no_two_are_alike() {
        for (index, marker) in ALL.iter().enumerate() {
            let outline = marker.outline((50.0, 50.0), 10.0);
            let reach = |&(x, y): &(i32, i32)| libm::hypot(f64::from(x - 500), f64::from(y - 500));
            assert!(outline.iter().all(|corner| reach(corner) <= 101.0), "{marker:?}");
            assert!(outline.iter().any(|corner| reach(corner) > 80.0), "{marker:?}");
            assert!(ALL[..index].iter().all(|other| other.outline((50.0, 50.0), 10.0) != outline));
        }
    }
}
