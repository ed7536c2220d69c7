//! Marker shapes, drawn as polygons: a method can be recognised by its shape where colours fail.
//!
//! Every shape fits into the circle of its radius: markers at a distance of two radii never touch.

use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, PI, TAU};

use plotters::element::{PathElement, Polygon};
use plotters::style::{BLACK, Color, RGBColor, WHITE};

use super::pen::{Point, fine};
use super::{Canvas, FINE, palette};
use crate::Error;

/// A marker's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Marker {
    /// A disc.
    Circle,
    /// An upright square.
    Square,
    /// A square on its tip.
    Diamond,
    /// A triangle that points up.
    Up,
    /// A triangle that points down.
    Down,
    /// A triangle that points left.
    Left,
    /// A triangle that points right.
    Right,
    /// A pentagon.
    Pentagon,
    /// A hexagon.
    Hexagon,
    /// A star with five tips.
    Star,
    /// An upright cross.
    Plus,
    /// A cross on its side.
    Cross,
}

impl Marker {
    /// The corners of the shape around a point, in canvas units; the radius is in pixels.
    pub fn outline(self, centre: Point, radius: f64) -> Vec<(i32, i32)> {
        let (centre, radius) = (fine(centre), radius * FINE);
        // How many corners, the angle of the first, and the reach of every even and odd one: shapes with much
        // area are drawn smaller, so that all carry about the same weight.
        let (corners, turn, reach) = match self {
            Self::Circle => (28, 0.0, [0.82, 0.82]),
            Self::Square => (4, FRAC_PI_4, [0.98, 0.98]),
            Self::Diamond => (4, 0.0, [1.0, 1.0]),
            Self::Up => (3, FRAC_PI_2, [1.0, 1.0]),
            Self::Down => (3, -FRAC_PI_2, [1.0, 1.0]),
            Self::Left => (3, PI, [1.0, 1.0]),
            Self::Right => (3, 0.0, [1.0, 1.0]),
            Self::Pentagon => (5, FRAC_PI_2, [0.93, 0.93]),
            Self::Hexagon => (6, 0.0, [0.9, 0.9]),
            Self::Star => (10, FRAC_PI_2, [1.0, 0.5]),
            Self::Plus => return cross(centre, radius, 0.0),
            Self::Cross => return cross(centre, radius, FRAC_PI_4),
        };
        (0..corners)
            .map(|corner| {
                let angle = turn + TAU * f64::from(corner) / f64::from(corners);
                polar(centre, radius * reach[usize::from(corner % 2 == 1)], angle)
            })
            .collect()
    }

    /// Draws the shape, filled, with a dark line and a white rim that separate it from what lies below.
    pub fn fill(self, root: &Canvas<'_>, at: Point, radius: f64, colour: RGBColor) -> Result<(), Error> {
        self.trace(root, at, radius, WHITE, 0.4)?;
        root.draw(&Polygon::new(self.outline(at, radius), colour.filled()))?;
        self.trace(root, at, radius, palette::mix(colour, BLACK, 0.5), 0.1)
    }

    /// Draws the shape as an outline in `colour` around white.
    pub fn hollow(self, root: &Canvas<'_>, at: Point, radius: f64, colour: RGBColor) -> Result<(), Error> {
        root.draw(&Polygon::new(self.outline(at, radius), WHITE.filled()))?;
        self.trace(root, at, 0.84 * radius, colour, 0.32 / 0.84)
    }

    /// Draws the outline with a line of this width, as a share of the radius.
    fn trace(
        self,
        root: &Canvas<'_>,
        at: Point,
        radius: f64,
        colour: RGBColor,
        width: f64,
    ) -> Result<(), Error> {
        let mut ring = self.outline(at, radius);
        ring.extend(ring.first().copied());
        let width = (FINE * radius * width).round().max(1.0) as u32;
        Ok(root.draw(&PathElement::new(ring, colour.stroke_width(width)))?)
    }
}

fn polar((x, y): (i32, i32), radius: f64, angle: f64) -> (i32, i32) {
    // Picture rows grow downwards, angles upwards.
    let (dx, dy) = (radius * libm::cos(angle), -radius * libm::sin(angle));
    (x + dx.round() as i32, y + dy.round() as i32)
}

fn cross(centre: (i32, i32), radius: f64, turn: f64) -> Vec<(i32, i32)> {
    let half = 0.36; // half the width of an arm, against its length
    let (arm, inner) = (libm::atan(half), half * std::f64::consts::SQRT_2 / libm::sqrt(1.0 + half * half));
    (0..4)
        .flat_map(|quarter| {
            let axis = turn + FRAC_PI_2 * f64::from(quarter);
            [(1.0, axis - arm), (1.0, axis + arm), (inner, axis + FRAC_PI_4)]
        })
        .map(|(reach, angle)| polar(centre, radius * reach, angle))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Marker; 12] = [
        Marker::Circle,
        Marker::Square,
        Marker::Diamond,
        Marker::Up,
        Marker::Down,
        Marker::Left,
        Marker::Right,
        Marker::Pentagon,
        Marker::Hexagon,
        Marker::Star,
        Marker::Plus,
        Marker::Cross,
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
