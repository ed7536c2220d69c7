//! The picture of the landscape: f over its domain as a block, seen from above the flat corner.
//!
//! Facets are denser where f oscillates faster, and are painted from back to front. The projection is parallel: equal steps
//! along an axis are equally long everywhere in the picture.

use plotters::element::Polygon;
use plotters::style::text_anchor::HPos;
use plotters::style::{BLACK, Color, RGBColor, WHITE};

use crate::Error;
use crate::picture::pen::{self, Point, Text, fine};
use crate::picture::{Canvas, Picture, palette};
use crate::vincent::landscape::{DOMAIN, value};

const SIZE: (u32, u32) = (900, 760);

/// Facets along one axis.
const FACETS: usize = 88;

/// Facets have equal steps in this power of x: denser where f oscillates faster.
const POWER: f64 = 0.4;

/// The height of the floor: where the axes lie.
const FLOOR: f64 = -2.6;

/// The middle of the block on the picture, and the width, depth and height of a side in pixels.
const MIDDLE: Point = (450.0, 392.0);
const WIDE: f64 = 395.0;
const DEEP: f64 = 256.0;
const HIGH: f64 = 28.0;

/// Draws the surface of f.
pub(in crate::vincent) fn surface() -> Result<Picture, Error> {
    Picture::draw(SIZE.0, SIZE.1, |root| {
        root.fill(&WHITE)?;
        let title = "f(x, y) = −sin(10 ln x) − sin(10 ln y)";
        Text::of(18.0).bold().write(root, title, (450.0, 30.0), HPos::Center)?;
        let grid = grid();
        facets(root, &grid)?;
        walls(root, &grid)?;
        axes(root)
    })
}

/// The position of a point of the landscape at a height. The far corner is that of small x and y.
fn at(x: f64, y: f64, height: f64) -> Point {
    let part = |v: f64| (v - DOMAIN[0]) / (DOMAIN[1] - DOMAIN[0]) - 0.5;
    let (x, y) = (part(x), part(y));
    (MIDDLE.0 + (y - x) * WIDE, MIDDLE.1 + (x + y) * DEEP - height * HIGH)
}

/// The facets' corners along an axis.
fn grid() -> Vec<f64> {
    let [low, high] = DOMAIN.map(|end| libm::pow(end, POWER));
    let place = |step: usize| low + (high - low) * step as f64 / FACETS as f64;
    (0..=FACETS).map(|step| libm::pow(place(step), 1.0 / POWER)).collect()
}

fn facets(root: &Canvas<'_>, grid: &[f64]) -> Result<(), Error> {
    for x in grid.windows(2) {
        for y in grid.windows(2) {
            let corners = [(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])];
            let heights = corners.map(|(x, y)| value([x, y]));
            let points = [0, 1, 2, 3].map(|index| at(corners[index].0, corners[index].1, heights[index]));
            let slope = [
                (heights[1] + heights[2] - heights[0] - heights[3]) / (2.0 * (x[1] - x[0])),
                (heights[2] + heights[3] - heights[0] - heights[1]) / (2.0 * (y[1] - y[0])),
            ];
            let middle = heights.iter().sum::<f64>() / 4.0;
            let colour = lit(palette::height(middle), slope);
            root.draw(&Polygon::new(grown(points), colour.filled()))?;
        }
    }
    Ok(())
}

/// Moves the corners a little away from their middle: this covers the seams between facets, and the next facet covers the
/// excess at the front.
fn grown(points: [Point; 4]) -> Vec<(i32, i32)> {
    let middle = points.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0 / 4.0, sum.1 + p.1 / 4.0));
    let moved = |(x, y): Point| {
        let (dx, dy) = (x - middle.0, y - middle.1);
        let share = 0.45 / libm::hypot(dx, dy).max(0.45);
        fine((x + share * dx, y + share * dy))
    };
    points.map(moved).to_vec()
}

/// Lightens slopes that face the light, far to the left, and darkens those that turn away from it.
fn lit(colour: RGBColor, [across, along]: [f64; 2]) -> RGBColor {
    let steep = 0.55;
    let (nx, ny) = (-steep * across, -steep * along);
    let length = libm::sqrt(nx * nx + ny * ny + 1.0);
    let light = (0.62 * nx - 0.30 * ny + 0.72) / length - 0.72;
    if light > 0.0 {
        palette::mix(colour, WHITE, 0.55 * light)
    } else {
        palette::mix(colour, BLACK, -0.38 * light)
    }
}

/// The two cuts through the landscape that face the viewer.
fn walls(root: &Canvas<'_>, grid: &[f64]) -> Result<(), Error> {
    let [low, high] = DOMAIN;
    for (along_x, colour) in [(true, RGBColor(206, 209, 214)), (false, RGBColor(228, 230, 233))] {
        let side = |v: f64| if along_x { [v, high] } else { [high, v] };
        let top: Vec<_> = grid.iter().map(|&v| side(v)).map(|[x, y]| at(x, y, value([x, y]))).collect();
        let [x, y] = side(low);
        let foot = [at(high, high, FLOOR), at(x, y, FLOOR)];
        let wall: Vec<_> = top.iter().copied().chain(foot).map(fine).collect();
        root.draw(&Polygon::new(wall, colour.filled()))?;
        pen::line(root, &top, palette::FAINT, 0.8)?;
    }
    Ok(())
}

fn axes(root: &Canvas<'_>) -> Result<(), Error> {
    let [low, high] = DOMAIN;
    let line = |from: Point, to: Point| pen::line(root, &[from, to], palette::INK, 1.0);
    let text = |text: &str, at: Point, side: HPos, size: f64| Text::of(size).write(root, text, at, side);
    line(at(low, high, FLOOR), at(high, high, FLOOR))?;
    line(at(high, low, FLOOR), at(high, high, FLOOR))?;
    for (x, y) in [(low, high), (high, low), (high, high)] {
        line(at(x, y, FLOOR), at(x, y, value([x, y])))?;
    }
    for tick in [0.25, 2.0, 4.0, 6.0, 8.0, 10.0] {
        let label = format!("{tick}");
        let (x, y) = at(tick, high, FLOOR);
        line((x, y), (x + 4.0, y + 5.0))?;
        text(&label, (x + 7.0, y + 13.0), HPos::Left, 13.0)?;
        let (x, y) = at(high, tick, FLOOR);
        line((x, y), (x - 4.0, y + 5.0))?;
        text(&label, (x - 7.0, y + 13.0), HPos::Right, 13.0)?;
    }
    let (x, y) = at(5.0, high, FLOOR);
    text("x", (x + 40.0, y + 36.0), HPos::Center, 15.0)?;
    let (x, y) = at(high, 5.0, FLOOR);
    text("y", (x - 40.0, y + 36.0), HPos::Center, 15.0)?;
    // The height's axis stands at the left corner.
    line(at(high, low, -2.0), at(high, low, 2.0))?;
    for tick in [-2, -1, 0, 1, 2] {
        let (x, y) = at(high, low, f64::from(tick));
        line((x - 5.0, y), (x, y))?;
        text(&format!("{tick}").replace('-', "−"), (x - 9.0, y), HPos::Right, 13.0)?;
    }
    let (x, y) = at(high, low, 2.0);
    text("f", (x - 4.0, y - 20.0), HPos::Center, 15.0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grid_follows_the_oscillation_and_covers_the_domain() {
        let grid = grid();
        assert_eq!(grid.len(), FACETS + 1);
        assert!((grid[0] - DOMAIN[0]).abs() < 1e-9 && (grid[FACETS] - DOMAIN[1]).abs() < 1e-9);
        // The sharpest valley, from ridge to ridge, is still seen by several facets.
        assert!(grid.iter().filter(|&&x| (0.25..0.456).contains(&x)).count() >= 5);
        assert!(grid.windows(2).all(|pair| pair[1] > pair[0] && pair[1] - pair[0] < 0.25));
    }

    #[test]
    fn the_surface_stays_small_and_inside_the_picture() {
        let picture = surface().unwrap();
        assert!(picture.svg().len() < 700_000, "{}", picture.svg().len());
        for (x, y, height) in [(0.25, 0.25, 2.0), (10.0, 10.0, FLOOR), (0.25, 10.0, 2.0), (10.0, 0.25, FLOOR)]
        {
            let (x, y) = at(x, y, height);
            assert!((30.0..870.0).contains(&x) && (45.0..740.0).contains(&y), "{x} {y}");
        }
    }
}
