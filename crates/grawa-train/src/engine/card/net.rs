//! A worker's copy of the network on a card. Its vectors stay there; what comes to the host are losses, norms, and copies
//! for checkpoints.

use super::batch::{Batch, show};
use super::{Deck, OnCard, Stock};
use crate::Error;
use crate::engine::Waits;
use crate::engine::net::told;
use grawa_core::{Key, Layout, Prox, Purpose, Replica, Sgd, StateKind, StepRequest, StepResults};
use grawa_data::{Loader, PrefetchLoader, Sampler, WorkerSampler};
use grawa_nn::cuda::Set;
use std::sync::Arc;
use std::time::Instant;

/// Most steps between two looks at what the host may want.
pub(super) const STRIDE: usize = 256;
/// Batches prepared ahead on the host, where the card cannot hold the data.
const AHEAD: usize = 2;

/// One worker's network on a card.
#[derive(Debug)]
pub(crate) struct CardNet {
    stock: Arc<Stock>,
    /// Which of the card's workers it is.
    worker: usize,
    cursor: WorkerSampler,
    /// Batches from the host and the step of the next one, where the card does not hold the data.
    fed: Option<(Option<PrefetchLoader>, u64)>,
    reader: Loader,
    /// The place of the last gradient's batch.
    key: Option<Key>,
    parameters: OnCard,
    gradients: OnCard,
    waits: Arc<Waits>,
}

/// What a worker asks for when it takes steps.
struct Ask {
    key: Key,
    batches: Vec<Batch>,
    rates: Vec<f32>,
    prox: [f32; 2],
    sgd: Sgd,
    radius: Option<f32>,
    norms: bool,
}

impl CardNet {
    pub(super) fn new(stock: Arc<Stock>, worker: u32, step: u64) -> Result<Self, Error> {
        let cursor = stock.order.for_worker(worker)?;
        let reader = Loader::new(stock.train.clone(), stock.order, worker)?;
        let fed = (!stock.holds).then_some((None, step));
        let (parameters, gradients) = (OnCard::Parameters, OnCard::Gradients);
        let waits = Arc::default();
        Ok(CardNet {
            worker: stock.seat(worker),
            cursor,
            fed,
            reader,
            key: None,
            parameters,
            gradients,
            waits,
            stock,
        })
    }

    /// What it waited for.
    pub(crate) fn waits(&self) -> Arc<Waits> {
        Arc::clone(&self.waits)
    }

    fn deck(&self) -> &Deck {
        &self.stock.deck
    }

    /// The batches of so many steps.
    fn batches(&mut self, first: u64, count: usize) -> Result<Vec<Batch>, Error> {
        let mut batches = Vec::with_capacity(count);
        for step in first..first + count as u64 {
            batches.push(match &mut self.fed {
                None => Batch::Examples(self.cursor.batch(step)?.to_vec()),
                Some((prefetch, next)) => {
                    if prefetch.is_none() || *next != step {
                        *prefetch = Some(PrefetchLoader::training(self.reader.clone(), step, AHEAD)?);
                    }
                    *next = step + 1;
                    let start = Instant::now();
                    let batch = match prefetch {
                        Some(prefetch) => {
                            prefetch.fetch()?;
                            prefetch.current().map(|batch| (batch.images.clone(), batch.labels.clone()))
                        }
                        None => None,
                    };
                    self.waits.wait_for_data(start.elapsed());
                    let (images, labels) =
                        batch.ok_or(grawa_data::Error::NoMoreBatches { panicked: false })?;
                    Batch::Images(images, labels)
                }
            });
        }
        Ok(batches)
    }

    /// The examples that a score is computed on, as on the CPU.
    fn score_batch(&self, key: Key) -> Result<Batch, Error> {
        let stock = &self.stock;
        let (who, round) = key.place();
        let (size, examples) = (stock.order.batch_size() as usize, stock.order.examples() as usize);
        let mut chosen = stock.order.score_batch(size.min(examples), who, round)?;
        for at in examples..size {
            chosen.push(chosen[at - examples]);
        }
        stock.plain(chosen)
    }

    fn take_steps(&mut self, stretch: &StepRequest<'_, OnCard>) -> Result<StepResults, Error> {
        let (_, first) = stretch.key.place();
        let ask = Ask {
            key: stretch.key,
            batches: self.batches(first, stretch.rates.len())?,
            rates: stretch.rates.to_vec(),
            prox: strengths(stretch.prox),
            sgd: *stretch.sgd,
            radius: stretch.radius,
            norms: stretch.norms,
        };
        self.deck().together(self.worker, ask, |fleet, mut asks| {
            let count = asks.iter().map(|ask| ask.rates.len()).min().unwrap_or(0);
            if count == 0 {
                return Ok(vec![StepResults::default(); asks.len()]);
            }
            let keys: Vec<Key> = asks.iter().map(|ask| ask.key).collect();
            let (prox, sgd) = (asks[0].prox, asks[0].sgd);
            let (radius, norms, rates) = (asks[0].radius, asks[0].norms, asks[0].rates[..count].to_vec());
            let fed = matches!(asks[0].batches[0], Batch::Images(..));
            if !fed {
                for (worker, ask) in asks.iter().enumerate() {
                    let examples: Vec<u32> = (ask.batches[..count].iter())
                        .flat_map(|batch| match batch {
                            Batch::Examples(examples) => examples.as_slice(),
                            Batch::Images(..) => &[],
                        })
                        .copied()
                        .collect();
                    fleet.deal(Set::Train, worker, &examples)?;
                }
            }
            fleet.place_each(&keys, &rates, prox)?;
            let mut found: Vec<Vec<f64>> = vec![Vec::new(); asks.len()];
            if radius.is_none() && !norms && !fed {
                fleet.steps(sgd, count)?;
            } else {
                for step in 0..count {
                    if fed {
                        let next = asks.iter_mut().map(|ask| {
                            std::mem::replace(&mut ask.batches[step], Batch::Examples(Vec::new()))
                        });
                        show(fleet, next.collect())?;
                    }
                    fleet.learn()?;
                    if let Some(radius) = radius {
                        fleet.ascend(radius)?;
                        fleet.learn_again()?;
                        fleet.restore()?;
                    }
                    if norms {
                        found.iter_mut().zip(fleet.norms()?).for_each(|(all, norms)| all.extend(norms));
                    }
                    fleet.descend(sgd)?;
                }
            }
            let mut taken = Vec::with_capacity(asks.len());
            for (worker, norms) in found.into_iter().enumerate() {
                let (losses, lost) = fleet.losses(worker, count)?;
                // The card notes whether a number ever was not finite; it does not come back by itself.
                taken.push(StepResults { losses, finite: vec![!lost; count], norms });
            }
            Ok(taken)
        })
    }

    /// The gradient at `key`; at the same key again, on the same batch.
    fn learn(&mut self, key: Key) -> Result<f64, Error> {
        let again = self.key == Some(key);
        let batch = match again {
            true => None,
            false => self.batches(key.place().1, 1)?.pop(),
        };
        self.key = Some(key);
        self.deck().together(self.worker, (key, batch), |fleet, asks| {
            let keys: Vec<Key> = asks.iter().map(|ask| ask.0).collect();
            let workers = keys.len();
            let batches: Vec<Batch> = asks.into_iter().filter_map(|ask| ask.1).collect();
            if batches.is_empty() {
                fleet.learn_again()?;
                // Of the second look nobody asks for the loss.
                return Ok(vec![f64::NAN; workers]);
            }
            if let Some(examples) = show(fleet, batches)? {
                for (worker, examples) in examples.iter().enumerate() {
                    fleet.deal(Set::Train, worker, examples)?;
                }
            }
            fleet.place_each(&keys, &[0.0], [0.0; 2])?;
            fleet.learn()?;
            (0..workers).map(|worker| Ok(fleet.losses(worker, 1)?.0[0])).collect()
        })
    }
}

/// The strengths of the pulls: to the centre of all, and to that of the group.
fn strengths(prox: &[Prox<'_, OnCard>]) -> [f32; 2] {
    let mut strengths = [0.0; 2];
    for prox in prox {
        if let OnCard::Centre { level, .. } = prox.centre
            && let Some(strength) = strengths.get_mut(*level)
        {
            *strength = prox.strength;
        }
    }
    strengths
}

impl Replica for CardNet {
    type Buffer = OnCard;

    fn layout(&self) -> &Layout {
        self.stock.graph.parameters()
    }

    fn deal(&mut self, seat: u32, of: u32) -> Result<(), grawa_core::Error> {
        let known = &self.stock.order;
        let order = Sampler::new(known.seed(), known.examples() as usize, of, known.batch_size())
            .map_err(|error| told(error.into()))?;
        self.cursor = order.for_worker(seat).map_err(|error| told(error.into()))?;
        self.reader =
            Loader::new(self.stock.train.clone(), order, seat).map_err(|error| told(error.into()))?;
        // What was prepared ahead, and what the card was shown last, was for another seat.
        self.fed.iter_mut().for_each(|(prefetch, _)| *prefetch = None);
        self.key = None;
        Ok(())
    }

    fn gradient(&mut self, key: Key) -> Result<f64, grawa_core::Error> {
        self.learn(key).map_err(told)
    }

    fn descend(
        &mut self,
        sgd: &Sgd,
        rate: f32,
        prox: &[Prox<'_, OnCard>],
    ) -> Result<bool, grawa_core::Error> {
        let ask = (*sgd, rate, strengths(prox));
        let done = self.deck().together(self.worker, ask, |fleet, asks| {
            let (sgd, rate, prox) = asks[0];
            fleet.set_rate(rate, prox)?;
            fleet.descend(sgd)?;
            (0..asks.len()).map(|worker| Ok(!fleet.losses(worker, 1)?.1)).collect()
        });
        done.map_err(told)
    }

    fn stride(&self) -> usize {
        if self.fed.is_some() { 1 } else { STRIDE }
    }

    fn steps(&mut self, stretch: &StepRequest<'_, OnCard>) -> Result<StepResults, grawa_core::Error> {
        self.take_steps(stretch).map_err(told)
    }

    fn ascend(&mut self, radius: f32) -> Result<(), grawa_core::Error> {
        let done = self.deck().together(self.worker, radius, |fleet, asks| {
            fleet.ascend(asks[0])?;
            Ok(vec![(); asks.len()])
        });
        done.map_err(told)
    }

    fn restore(&mut self) -> Result<(), grawa_core::Error> {
        let done = self.deck().together(self.worker, (), |fleet, asks| {
            fleet.restore()?;
            Ok(asks)
        });
        done.map_err(told)
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        let norms = self.deck().together(self.worker, (), |fleet, _| Ok(fleet.norms()?)).map_err(told)?;
        out.copy_from_slice(&norms);
        Ok(())
    }

    fn score(&mut self, key: Key, dropout: bool, out: &mut [f64]) -> Result<(), grawa_core::Error> {
        let batch = self.score_batch(key).map_err(told)?;
        let key = key.purpose(Purpose::Dropout);
        let norms = self.deck().together(self.worker, (key, batch, dropout), |fleet, asks| {
            let keys: Vec<Key> = asks.iter().map(|ask| ask.0).collect();
            let dropout = asks[0].2;
            let examples = show(fleet, asks.into_iter().map(|ask| ask.1).collect())?;
            Ok(fleet.score(&keys, examples.as_deref(), dropout)?)
        });
        out.copy_from_slice(&norms.map_err(told)?);
        Ok(())
    }

    fn reset(&mut self) {
        let (worker, zeros) = (self.worker, vec![0.0; self.layout().len()]);
        // A card that cannot be written to says so at the next step.
        let _ = self.deck().alone(|fleet| fleet.load_velocity(worker, &zeros));
    }

    fn parameters(&mut self) -> &mut OnCard {
        &mut self.parameters
    }

    fn gradients(&mut self) -> &mut OnCard {
        &mut self.gradients
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, grawa_core::Error> {
        let worker = self.worker;
        let copied = self.deck().alone(|fleet| match what {
            StateKind::Parameters => fleet.parameters(worker),
            StateKind::Velocity => fleet.velocity(worker),
            StateKind::Statistics => fleet.statistics(worker),
        });
        copied.map_err(|error| told(error.into()))
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), grawa_core::Error> {
        let worker = self.worker;
        let done = self.deck().alone(|fleet| match what {
            StateKind::Parameters => fleet.load_parameters(worker, values),
            StateKind::Velocity => fleet.load_velocity(worker, values),
            StateKind::Statistics => fleet.load_statistics(worker, values),
        });
        done.map_err(|error| told(error.into()))
    }
}

impl Drop for CardNet {
    fn drop(&mut self) {
        self.deck().leave(self.stock.workers.start + self.worker as u32);
    }
}
