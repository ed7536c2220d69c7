//! Training on a GPU: all workers on one card, their vectors and the data set with them.
//!
//! The worker's loop is the same as on the CPU. What differs is here: a `CardNet` takes its steps together with the
//! others, a `CardMember` mixes where the vectors lie, a `CardExaminer` measures there.

mod batch;
mod deck;
mod examine;
mod member;
mod net;

pub(crate) use deck::Deck;
pub(crate) use examine::CardExaminer;
pub(crate) use member::CardMember;
pub(crate) use net::CardNet;

use super::Material;
use crate::run::Group;
use crate::{Error, Recipe};
use batch::Batch;
use grawa_core::{Kept, Replica, Share};
use grawa_data::{Crop, Feed, Order};
use grawa_nn::cuda::{Bytes, Fleet, Set, Settings, View, cards};
use grawa_nn::{Graph, Shape, State};
use std::sync::Arc;
use std::time::Duration;

/// A vector on the card, to those who cannot look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCard {
    /// A worker's parameters.
    Parameters,
    /// A worker's gradient.
    Gradients,
    /// The centre of a group of a level: 0 that of all workers, 1 that of the groups, 2 the model that is looked at.
    Centre { level: usize, group: usize },
}

/// The level of the model that is looked at.
const LOOKED_AT: usize = 2;
/// Of a card's free memory no more than this share is given to data.
const SHARE_OF_DATA: f64 = 0.5;

/// What a card's workers share.
#[derive(Debug)]
pub(crate) struct Stock {
    pub(super) deck: Deck,
    pub(super) graph: Graph,
    pub(super) order: Order,
    pub(super) train: Feed,
    pub(super) test: Feed,
    /// Whether the data lie on the card.
    pub(super) holds: bool,
}

impl Stock {
    /// A batch of these training examples as evaluation shows them.
    fn plain(&self, examples: Vec<u32>) -> Result<Batch, Error> {
        if self.holds {
            return Ok(Batch::Examples(examples));
        }
        let mut images = vec![0.0; examples.len() * self.train.output().len()];
        let mut labels = vec![0; examples.len()];
        self.train.plain(&examples, &mut images, &mut labels)?;
        Ok(Batch::Images(images, labels))
    }

    /// A batch of the test set; what is missing at its end is filled up.
    fn test_batch(&self, number: usize) -> Result<Batch, Error> {
        let size = self.order.batch_size() as usize;
        if self.holds {
            let last = self.test.len().saturating_sub(1);
            let examples = number * size..(number + 1) * size;
            return Ok(Batch::Examples(examples.map(|example| example.min(last) as u32).collect()));
        }
        let mut images = vec![0.0; size * self.test.output().len()];
        let mut labels = vec![0; size];
        self.test.evaluation(number, &mut images, &mut labels)?;
        Ok(Batch::Images(images, labels))
    }
}

/// A network and its data on a card, ready to make workers.
#[derive(Clone, Debug)]
pub(crate) struct CardEngine {
    stock: Arc<Stock>,
    policy: crate::recipe::BatchNorm,
    batches: usize,
    levels: usize,
}

impl CardEngine {
    /// Compiles the network for the first card and puts the data there.
    pub(crate) fn new(recipe: &Recipe, material: &Material) -> Result<Self, Error> {
        let Material { graph, order, train, test } = material;
        let none = || grawa_nn::Error::Device {
            action: "use a GPU".into(),
            why: "the driver knows of none; see `grawa devices`".into(),
        };
        let card = cards()?.into_iter().next().ok_or_else(none)?;
        let settings = Settings {
            batch: recipe.train.batch as usize,
            workers: recipe.train.workers as usize,
            precision: recipe.machine.precision,
            fixed: recipe.machine.deterministic,
        };
        let room = card.memory as f64 * SHARE_OF_DATA;
        let mut fleet = Fleet::new(&card, graph, settings)?;
        if let Some(inner) = &recipe.method.inner {
            fleet.group_by(inner.group as usize);
        }
        let bytes = |feed: &Feed| feed.part().bytes().map(<[u8]>::len);
        let holds = bytes(train).zip(bytes(test)).is_some_and(|(train, test)| ((train + test) as f64) < room);
        if holds {
            for (set, feed, steps) in [(Set::Train, train, net::STRIDE), (Set::Test, test, 1)] {
                let shape = feed.part().shape();
                let data = Bytes {
                    shape: Shape {
                        channels: shape.channels as usize,
                        height: shape.height as usize,
                        width: shape.width as usize,
                    },
                    images: feed.part().bytes().unwrap_or_default(),
                    labels: feed.part().labels(),
                    table: feed.table(),
                };
                let crop = match feed.augment().crop {
                    Crop::Random { pad, .. } => Some(pad),
                    Crop::Whole | Crop::Resized { .. } => None,
                };
                fleet.hold(set, data, View { flip: feed.augment().flip, crop }, steps)?;
            }
        }
        let batches = super::recalibration_batches(recipe, train.len());
        let stock = Stock {
            deck: Deck::new(fleet),
            graph: graph.clone(),
            order: *order,
            train: train.clone(),
            test: test.clone(),
            holds,
        };
        let levels = 1 + usize::from(recipe.method.inner.is_some());
        Ok(CardEngine { stock: Arc::new(stock), policy: recipe.evaluate.batch_norm, batches, levels })
    }

    /// A worker that starts with this state and no momentum, at this step of its data.
    pub(crate) fn worker(&self, worker: u32, state: &State, step: u64) -> Result<CardNet, Error> {
        let mut net = CardNet::new(Arc::clone(&self.stock), worker, step)?;
        net.put(Kept::Statistics, &state.statistics)?;
        net.put(Kept::Parameters, &state.parameters)?;
        Ok(net)
    }

    /// Connects a group of workers and gives it its centre.
    pub(crate) fn gather(&self, group: Group, deadline: Duration) -> Result<Vec<CardMember>, Error> {
        let place = match group.place {
            None => (LOOKED_AT, 0),
            // The level of all workers is the last of the run's, and the card's first.
            Some((level, number)) => (self.levels - 1 - level, number),
        };
        if !group.centre.is_empty() {
            self.stock.deck.alone(|fleet| fleet.load_centre(place.0, place.1, &group.centre))?;
        }
        Ok(member::group(&self.stock, group.workers, place, deadline))
    }

    /// A worker's share in measuring models.
    pub(crate) fn examiner(&self, worker: u32) -> CardExaminer {
        CardExaminer {
            stock: Arc::clone(&self.stock),
            worker: worker as usize,
            policy: self.policy,
            batches: self.batches,
        }
    }
}

/// What does not go together with a card, if anything: the key to change and why.
pub(crate) fn objection(recipe: &Recipe) -> Option<(&'static str, String)> {
    use crate::recipe::Pace;
    const MOST: u32 = 64;
    if recipe.train.pace == Pace::Free {
        let why = "on a GPU all workers step together; set train.pace = 'even', or machine.device = 'cpu'";
        return Some(("train.pace", why.into()));
    }
    if recipe.train.workers > MOST && recipe.method.share != Share::Nothing {
        let why = format!(
            "{} workers on one GPU are more than {MOST}, the most there can be",
            recipe.train.workers
        );
        return Some(("train.workers", why));
    }
    None
}
