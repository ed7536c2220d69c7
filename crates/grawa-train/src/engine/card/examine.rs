//! Measuring a model on a card: all workers lend it their places and take every n-th batch, as on the CPU.

use super::batch::{Batch, show};
use super::{OnCard, Stock};
use crate::Error;
use crate::engine::{Examine, SHARE, recalibration};
use crate::recipe::BatchNorm;
use grawa_core::{Key, Layout, Purpose};
use grawa_nn::cuda::{Fleet, Model};
use std::sync::Arc;

/// One worker's share in measuring models.
#[derive(Debug)]
pub(crate) struct CardExaminer {
    pub(super) stock: Arc<Stock>,
    pub(super) worker: usize,
    pub(super) policy: BatchNorm,
    /// Batches that recalibration looks at.
    pub(super) batches: usize,
}

/// What a worker hands in: a model, its statistics, and batches with the draws of their augmentation, if they are augmented.
struct Ask {
    model: Model,
    statistics: Option<Vec<f32>>,
    batches: Vec<(Key, Batch)>,
}

/// Batches of a worker that are looked at together: those that come from the host must all find room there.
const AT_ONCE: usize = 16;

/// A seat's batches, so many at once. Every seat has as many turns as one that has `most`, since the card waits for all to ask.
fn turns<T>(batches: &[T], most: usize) -> impl Iterator<Item = &[T]> {
    let part = |from: usize| &batches[from.min(batches.len())..(from + AT_ONCE).min(batches.len())];
    (0..most).step_by(AT_ONCE).map(part)
}

fn model(of: &OnCard) -> Model {
    match *of {
        OnCard::Centre { level, group } => Model::Centre { level, group },
        OnCard::Parameters | OnCard::Gradients => Model::Own,
    }
}

/// Passes every worker's batches through the model in its place, one of each at a time; `pass` says what comes of one.
fn look<T>(
    fleet: &mut Fleet,
    mut asks: Vec<Ask>,
    mut pass: impl FnMut(&mut Fleet, &[Key], Option<&[Vec<u32>]>) -> Result<Vec<T>, grawa_nn::Error>,
) -> Result<Vec<Vec<T>>, Error> {
    fleet.borrow(&asks.iter().map(|ask| ask.model).collect::<Vec<_>>())?;
    for (worker, ask) in asks.iter_mut().enumerate() {
        if let Some(statistics) = ask.statistics.take() {
            fleet.load_statistics(worker, &statistics)?;
        }
    }
    let mut found: Vec<Vec<T>> = asks.iter().map(|_| Vec::new()).collect();
    let most = asks.iter().map(|ask| ask.batches.len()).max().unwrap_or(0);
    // Whoever has fewer batches looks at somebody's again.
    let filler = asks.iter().find_map(|ask| ask.batches.first().cloned());
    for number in 0..most {
        let next = |ask: &Ask| ask.batches.get(number).cloned().or_else(|| filler.clone());
        let (keys, batches): (Vec<Key>, Vec<Batch>) = asks.iter().filter_map(next).unzip();
        let examples = show(fleet, batches)?;
        let results = pass(fleet, &keys, examples.as_deref())?;
        for ((ask, found), result) in asks.iter().zip(&mut found).zip(results) {
            if number < ask.batches.len() {
                found.push(result);
            }
        }
    }
    Ok(found)
}

/// The same, and the workers get their places back whatever happens.
fn look_and_leave<T>(
    fleet: &mut Fleet,
    asks: Vec<Ask>,
    pass: impl FnMut(&mut Fleet, &[Key], Option<&[Vec<u32>]>) -> Result<Vec<T>, grawa_nn::Error>,
) -> Result<Vec<Vec<T>>, Error> {
    let found = look(fleet, asks, pass);
    fleet.give_back()?;
    found
}

impl Examine<OnCard> for CardExaminer {
    fn policy(&self) -> BatchNorm {
        self.policy
    }

    fn statistics(&self) -> &Layout {
        self.stock.graph.statistics()
    }

    fn recalibrate(
        &mut self,
        of: &OnCard,
        (seat, seats): (usize, usize),
        alive: &mut dyn FnMut(),
    ) -> Result<(Vec<f64>, u64), Error> {
        let chosen = recalibration(&self.stock.order, (seat, seats), self.batches)?;
        let (mut sums, mut count) = (vec![0.0; self.statistics().len()], 0);
        for chosen in turns(&chosen, self.batches.div_ceil(seats)) {
            alive();
            let batch =
                |(key, chosen): &(Key, Vec<u32>)| Ok((*key, self.stock.augmented(*key, chosen.clone())?));
            let batches = chosen.iter().map(batch).collect::<Result<_, Error>>()?;
            let ask = Ask { model: model(of), statistics: None, batches };
            let found = self.stock.deck.together(self.worker, ask, |fleet, asks| {
                look_and_leave(fleet, asks, Fleet::batch_statistics)
            })?;
            count += found.len() as u64;
            for batch in &found {
                sums.iter_mut().zip(batch).for_each(|(sum, &found)| *sum += f64::from(found) / SHARE);
            }
        }
        Ok((sums, count))
    }

    fn each(
        &mut self,
        of: &OnCard,
        statistics: &[f32],
        (seat, seats): (usize, usize),
        alive: &mut dyn FnMut(),
        show: &mut dyn FnMut(&[f32], usize),
    ) -> Result<(), Error> {
        let (size, examples) = (self.stock.order.batch_size() as usize, self.stock.test.len());
        let (all, classes) = (examples.div_ceil(size), self.stock.graph.classes());
        let numbers: Vec<usize> = (seat..all).step_by(seats).collect();
        for numbers in turns(&numbers, all.div_ceil(seats)) {
            alive();
            // The test set is never augmented.
            let unused = Key::new(0, Purpose::Augment);
            let batch = |&number: &usize| Ok((unused, self.stock.test_batch(number)?));
            let batches = numbers.iter().map(batch).collect::<Result<_, Error>>()?;
            let ask = Ask { model: model(of), statistics: Some(statistics.to_vec()), batches };
            let found = self.stock.deck.together(self.worker, ask, |fleet, asks| {
                look_and_leave(fleet, asks, |fleet, _, examples| fleet.test(examples))
            })?;
            for (&number, logits) in numbers.iter().zip(&found) {
                let labels = self.stock.test.split().labels()[number * size..].iter();
                for (logits, &label) in logits.chunks_exact(classes).zip(labels) {
                    show(logits, label as usize);
                }
            }
        }
        Ok(())
    }
}
