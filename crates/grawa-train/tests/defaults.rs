//! The defaults of a data set, checked by a run: with nothing said but the data, the network learns it.
//!
//! The published sets are not here. Their part is taken by the embedded digits, as they are and enlarged to the size of MNIST:
//! a rate that is too large for the network at that size fails on both. `docs/data.md` has runs on the sets themselves.

#![allow(clippy::unwrap_used)]

mod runs;

use grawa_core::Amount;
use grawa_data::{Dataset, DatasetKind, Shape, Split, digits};
use grawa_train::Recipe;
use runs::go;
use tempfile::TempDir;

/// The test error of the defaults of a data set, after a budget or their own.
fn error(kind: DatasetKind, budget: Option<Amount>, data: &Dataset) -> f64 {
    let mut recipe = Recipe::for_data(kind, None).unwrap();
    recipe.train.budget = budget.unwrap_or(recipe.train.budget);
    // Only the end is looked at.
    (recipe.evaluate.every, recipe.checkpoint.every) = (None, None);
    let place = TempDir::new().unwrap();
    let (wrong, examples) = go(&recipe, data, place.path()).1.last_wrong();
    wrong as f64 / examples as f64
}

/// The digits in the size and the values of MNIST: 24 × 24 in the middle of 28 × 28.
fn enlarged(small: &Split) -> Split {
    let mut bytes = Vec::with_capacity(small.len() * 28 * 28);
    for image in small.bytes().unwrap().chunks(8 * 8) {
        for (row, column) in (0..28).flat_map(|row| (0..28).map(move |column| (row, column))) {
            let inside = (2..26).contains(&row) && (2..26).contains(&column);
            let level = if inside { image[(row - 2) / 3 * 8 + (column - 2) / 3] } else { 0 };
            // Of 16 levels.
            bytes.push((u32::from(level) * 255 / 16).min(255) as u8);
        }
    }
    Split::from_bytes(Shape::new(1, 28, 28), bytes, small.labels().to_vec(), 10).unwrap()
}

#[test]
fn the_digits_are_learnt() {
    let found = error(DatasetKind::Digits, None, &digits().unwrap());
    assert!(found < 0.03, "{found}");
}

/// A third of MNIST's first epoch, in steps: by then the network must be far from guessing.
#[test]
fn images_of_the_size_of_mnist_are_learnt() {
    let small = digits().unwrap();
    for kind in [DatasetKind::Mnist, DatasetKind::FashionMnist] {
        let data = Dataset {
            normalise: kind.normalise(),
            train: enlarged(&small.train),
            test: enlarged(&small.test),
            ..small.clone()
        };
        let found = error(kind, Some(Amount::Steps(32)), &data);
        assert!(found < 0.1, "{kind}: {found}");
    }
}
