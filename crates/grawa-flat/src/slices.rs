//! Slices of the landscape: the losses along a line between two states, and over a plane around one.
//!
//! A random plane is spanned by filter-normalised directions (Li et al., "Visualizing the loss landscape of neural
//! nets", 2018): each filter of a direction has the length of the network's filter, and biases and batch norms
//! stay, so networks of different scales can be compared. A plane can also go through workers. Running statistics move with
//! a line's parameters; on a plane they stay those of the middle.

use crate::vector::{add, dot, norm, orthogonalise, scale};
use crate::{Error, LossAndError, Losses, power};
use grawa_core::{Key, Layout};
use grawa_nn::State;

/// The losses along a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Positions: 0 is the first state, 1 the second.
    pub places: Vec<f64>,
    /// Loss and error at each.
    pub values: Vec<LossAndError>,
}

impl Line {
    /// Evaluates the line through two states.
    pub fn between(
        losses: &mut Losses<'_>,
        from: &State,
        to: &State,
        places: Vec<f64>,
        mut note: impl FnMut(),
    ) -> Result<Self, Error> {
        if from.parameters == to.parameters {
            return Err(Error::SamePoint("the two checkpoints"));
        }
        let between = |a: &[f32], b: &[f32], at: f64| -> Vec<f32> {
            a.iter().zip(b).map(|(&a, &b)| ((1.0 - at) * f64::from(a) + at * f64::from(b)) as f32).collect()
        };
        let mut values = Vec::with_capacity(places.len());
        for &at in &places {
            let parameters = between(&from.parameters, &to.parameters, at);
            // Beyond the ends a variance could become negative.
            let statistics = between(&from.statistics, &to.statistics, at.clamp(0.0, 1.0));
            values.push(losses.at(&parameters, &statistics)?);
            note();
        }
        Ok(Line { places, values })
    }
}

/// The losses over a plane.
#[derive(Clone, Debug, PartialEq)]
pub struct Plane {
    /// Positions along either direction, the middle at 0.
    pub places: [Vec<f64>; 2],
    /// Loss and error, row by row: a row holds all positions of the first direction.
    pub values: Vec<LossAndError>,
}

impl Plane {
    /// Evaluates a grid.
    pub fn around(
        losses: &mut Losses<'_>,
        middle: &State,
        directions: &[Vec<f32>; 2],
        places: [Vec<f64>; 2],
        mut note: impl FnMut(),
    ) -> Result<Self, Error> {
        let mut values = Vec::with_capacity(places[0].len() * places[1].len());
        for &up in &places[1] {
            for &along in &places[0] {
                let mut parameters = middle.parameters.clone();
                add(&mut parameters, along, &directions[0]);
                add(&mut parameters, up, &directions[1]);
                values.push(losses.at(&parameters, &middle.statistics)?);
                note();
            }
        }
        Ok(Plane { places, values })
    }
}

/// A random direction, filter-normalised to these parameters.
///
/// ```
/// use grawa_core::{Key, Layout, Purpose};
/// let layout = Layout::new([("conv.weight", vec![2, 3]), ("conv.bias", vec![2])])?;
/// let parameters = [3.0, 4.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0];
/// let found = grawa_flat::filter_normalised(&layout, &parameters, Key::new(1, Purpose::Direction));
/// assert!((found[..3].iter().map(|x| x * x).sum::<f32>() - 25.0).abs() < 1e-4);
/// assert_eq!(found[3..], [0.0; 5]);
/// # Ok::<(), grawa_core::Error>(())
/// ```
pub fn filter_normalised(layout: &Layout, parameters: &[f32], key: Key) -> Vec<f32> {
    let mut draws = key.stream();
    let mut direction: Vec<f32> = (0..layout.len()).map(|_| draws.normal() as f32).collect();
    for span in layout.spans() {
        let (own, drawn) = (&parameters[span.range()], &mut direction[span.range()]);
        if span.shape().len() < 2 || span.is_empty() {
            drawn.fill(0.0);
            continue;
        }
        let filter = span.len() / span.shape()[0];
        for (own, drawn) in own.chunks_exact(filter).zip(drawn.chunks_exact_mut(filter)) {
            let factor = norm(own) / norm(drawn).max(f64::MIN_POSITIVE);
            scale(drawn, factor);
        }
    }
    direction
}

/// The plane in which workers differ most from the middle.
#[derive(Clone, Debug, PartialEq)]
pub struct Principal {
    /// Its two directions, each of length 1.
    pub directions: [Vec<f32>; 2],
    /// Every worker's position along them.
    pub places: Vec<[f64; 2]>,
}

/// The plane of the two principal directions of the workers.
pub fn principal(middle: &[f32], workers: &[&[f32]], key: Key) -> Result<Principal, Error> {
    if workers.len() < 2 {
        return Err(Error::TooFew("workers", workers.len(), 2));
    }
    let away: Vec<Vec<f32>> = workers
        .iter()
        .map(|worker| {
            let mut away = worker.to_vec();
            add(&mut away, -1.0, middle);
            away
        })
        .collect();
    let longest = away.iter().map(|away| norm(away)).fold(0.0, f64::max);
    // The widest scatter of the workers beside the directions before it.
    let widest = |number: u64, before: &[Vec<f32>]| {
        let scatter = |v: &[f32], out: &mut [f32]| {
            out.fill(0.0);
            for away in &away {
                add(out, dot(away, v), away);
            }
            orthogonalise(out, before);
            Ok(())
        };
        let found = power(scatter, key.step(number), middle.len(), 1e-3, 100)?;
        if found.value <= (1e-6 * longest).powi(2) {
            return Err(Error::SamePoint("the workers and the middle, but for one line,"));
        }
        Ok(found.vector)
    };
    let first = widest(0, &[])?;
    let second = widest(1, std::slice::from_ref(&first))?;
    let places = away.iter().map(|away| [dot(away, &first), dot(away, &second)]).collect();
    Ok(Principal { directions: [first, second], places })
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_core::Purpose;

    #[test]
    fn workers_in_a_plane_lie_where_they_are() {
        let key = Key::new(6, Purpose::Direction);
        let (a, mut b) = (crate::direction(key.step(10), 500), crate::direction(key.step(11), 500));
        orthogonalise(&mut b, std::slice::from_ref(&a));
        let length = norm(&b);
        scale(&mut b, 1.0 / length);
        let middle = crate::direction(key.step(12), 500);
        let at = |x: f64, y: f64| {
            let mut worker = middle.clone();
            add(&mut worker, x, &a);
            add(&mut worker, y, &b);
            worker
        };
        let known = [[3.0, 0.5], [-2.0, 1.0], [-1.0, -1.5]];
        let workers = known.map(|[x, y]| at(x, y));
        let slices: Vec<&[f32]> = workers.iter().map(Vec::as_slice).collect();
        let Principal { directions, places } = principal(&middle, &slices, key).unwrap();
        assert!(dot(&directions[0], &directions[1]).abs() < 1e-6);
        // The plane holds them: lengths and distances are kept.
        for (place, known) in places.iter().zip(&known) {
            let length = |p: &[f64; 2]| libm::hypot(p[0], p[1]);
            assert!((length(place) - length(known)).abs() < 1e-4, "{place:?} and {known:?}");
        }
        let spread = |axis: usize| places.iter().map(|place| place[axis] * place[axis]).sum::<f64>();
        assert!(spread(0) > spread(1));
        assert!(principal(&middle, &slices[..1], key).is_err());
        let one_line = [at(1.0, 1.0), at(2.0, 2.0)];
        assert!(principal(&middle, &[&one_line[0], &one_line[1]], key).is_err());
    }
}
