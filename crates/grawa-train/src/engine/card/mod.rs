//! Training on GPUs: workers are dealt to the cards, their vectors and the data set with them.
//!
//! The worker's loop is the same as on the CPU. What differs is here: a `CardNet` takes its steps together with the
//! others, a `CardMember` mixes where the vectors lie, a `CardExaminer` measures there.

mod batch;
mod deal;
mod deck;
mod examine;
mod member;
mod net;
mod staged;

pub(crate) use deck::Deck;
pub(crate) use examine::CardExaminer;
pub(crate) use member::CardMember;
use member::Home;
pub(crate) use net::CardNet;
pub(crate) use staged::Staged;

use super::Material;
use crate::run::Group;
use crate::snapshot::Part;
use crate::{Error, Recipe};
use batch::Batch;
use deal::{deal, in_step};
use grawa_comm::Collective;
use grawa_core::{Key, Replica, Share, StateKind};
use grawa_data::{Crop, Feed, Sampler};
use grawa_nn::cuda::{Bytes, Card, Fleet, Link, Set, Settings, Sum, View, cards};
use grawa_nn::{Graph, Shape, State};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// A vector on the card, to those who cannot look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnCard {
    /// A worker's parameters.
    Parameters,
    /// A worker's gradient.
    Gradients,
    /// The centre of a group of a level: 0 that of all workers, 1 that of the card's groups, 2 the model that is looked at.
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
    /// Who they are.
    pub(super) workers: Range<u32>,
    pub(super) graph: Graph,
    pub(super) order: Sampler,
    pub(super) train: Feed,
    pub(super) test: Feed,
    /// Whether the data lie on the card.
    pub(super) holds: bool,
}

impl Stock {
    /// Which of the card's workers this one is.
    fn seat(&self, worker: u32) -> usize {
        worker.saturating_sub(self.workers.start) as usize
    }

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

    /// A batch of these training examples, augmented by the draws at `key`.
    fn augmented(&self, key: Key, examples: Vec<u32>) -> Result<Batch, Error> {
        if self.holds {
            return Ok(Batch::Examples(examples));
        }
        let mut images = vec![0.0; examples.len() * self.train.output().len()];
        let mut labels = vec![0; examples.len()];
        self.train.augmented(key, &examples, &mut images, &mut labels)?;
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

/// A network and its data on every card that is used, ready to make workers.
#[derive(Clone, Debug)]
pub(crate) struct CardEngine {
    /// What connects the cards, if there are several.
    link: Option<Arc<Link>>,
    stocks: Vec<Arc<Stock>>,
    policy: crate::recipe::BatchNorm,
    batches: usize,
    levels: usize,
    /// Workers in a group of the inner level.
    group: u32,
}

impl CardEngine {
    /// Compiles the network for the cards that the recipe asks for, deals the workers to them and puts the data there.
    pub(crate) fn new(recipe: &Recipe, material: &Material) -> Result<Self, Error> {
        let mut found = match recipe.machine.cards {
            None => usable(u32::MAX, false)?,
            Some(asked) => usable(asked, true)?,
        };
        if recipe.train.workers.div_ceil(found.len() as u32) > MOST && recipe.method.share != Share::Nothing {
            let why = format!(
                "{MOST} workers a GPU are the most there can be; use more GPUs, or processes of their own"
            );
            return Err(grawa_nn::Error::Device {
                action: format!("train {} workers", recipe.train.workers),
                why,
            }
            .into());
        }
        found.truncate(deal(recipe.train.workers, found.len()).len());
        let link = match found.len() {
            1 => None,
            _ => Some(Link::new(Sum::Nccl, &found)?),
        };
        CardEngine::on(recipe, material, &found, link)
    }

    /// The same for the one worker that this process has of a run's, on the card that its number chooses: those of a machine take
    /// turns. A machine may have fewer cards than the recipe names for another.
    pub(crate) fn of_one(
        recipe: &Recipe,
        material: &Material,
        seat: u32,
        number: u32,
    ) -> Result<Self, Error> {
        let found = usable(recipe.machine.cards.unwrap_or(u32::MAX).max(1), false)?;
        let card = &found[number as usize % found.len()];
        let stock = stock(recipe, material, card, seat..seat + 1)?;
        Ok(CardEngine::with(recipe, material, vec![Arc::new(stock)], None))
    }

    /// The same on these cards; what connects them may be left out if it is one.
    fn on(recipe: &Recipe, material: &Material, cards: &[Card], link: Option<Link>) -> Result<Self, Error> {
        let stocks = (cards.iter().zip(deal(recipe.train.workers, cards.len())))
            .map(|(card, workers)| Ok(Arc::new(stock(recipe, material, card, workers)?)))
            .collect::<Result<_, Error>>()?;
        Ok(CardEngine::with(recipe, material, stocks, link.map(Arc::new)))
    }

    fn with(recipe: &Recipe, material: &Material, stocks: Vec<Arc<Stock>>, link: Option<Arc<Link>>) -> Self {
        CardEngine {
            stocks,
            link,
            policy: recipe.evaluate.batch_norm,
            batches: super::recalibration_batches(recipe, material.train.len()),
            levels: 1 + usize::from(recipe.method.inner.is_some()),
            group: recipe.method.inner.as_ref().map_or(1, |inner| inner.group.max(1)),
        }
    }

    /// The card that a worker lives on.
    fn home(&self, worker: u32) -> &Arc<Stock> {
        let found = self.stocks.iter().find(|stock| stock.workers.contains(&worker));
        found.unwrap_or(&self.stocks[0])
    }

    /// Whether workers that are in the middle of such cycles can go on together.
    pub(crate) fn is_in_step(&self, parts: &[Part]) -> bool {
        let blocks: Vec<Range<u32>> = self.stocks.iter().map(|stock| stock.workers.clone()).collect();
        in_step(&blocks, &parts.iter().map(|part| (part.worker, part.in_cycle)).collect::<Vec<_>>())
    }

    /// A worker that starts with this state and no momentum, at this step of its data.
    pub(crate) fn worker(&self, worker: u32, state: &State, step: u64) -> Result<CardNet, Error> {
        let mut net = CardNet::new(Arc::clone(self.home(worker)), worker, step)?;
        net.put(StateKind::Statistics, &state.statistics)?;
        net.put(StateKind::Parameters, &state.parameters)?;
        Ok(net)
    }

    /// Puts a model into the place of the first worker, for one who only looks at it.
    pub(crate) fn place_model(&self, model: &State) -> Result<OnCard, Error> {
        self.stocks[0].deck.alone(|fleet| fleet.load(0, &model.parameters, &model.statistics))?;
        Ok(OnCard::Parameters)
    }

    /// Connects a group of workers and gives it its centre, one on every card where it has workers.
    pub(crate) fn gather(&self, group: &Group, deadline: Duration) -> Result<Vec<CardMember>, Error> {
        let mut homes = Vec::new();
        for stock in &self.stocks {
            let workers =
                group.workers.start.max(stock.workers.start)..group.workers.end.min(stock.workers.end);
            if workers.is_empty() {
                continue;
            }
            let place = self.place(group.place, stock);
            if !group.centre.is_empty() {
                stock.deck.alone(|fleet| fleet.load_centre(place.0, place.1, &group.centre))?;
            }
            homes.push(Home { stock: Arc::clone(stock), workers, place });
        }
        // A group that lies on one card stays there.
        let link = self.link.clone().filter(|_| homes.len() > 1);
        Ok(member::group(homes, link.as_ref(), deadline))
    }

    /// A worker's end of a group that lies elsewhere.
    pub(crate) fn staged<C: Collective<Buffer = [f32]>>(
        &self,
        member: C,
        place: Option<(usize, usize)>,
    ) -> Result<Staged<C>, Error> {
        let stock = &self.stocks[0];
        Ok(Staged::new(member, Arc::clone(stock), self.place(place, stock))?)
    }

    /// Where a card keeps the centre of a group; the group that makes the evaluated model has no place in the run.
    fn place(&self, of: Option<(usize, usize)>, stock: &Stock) -> (usize, usize) {
        match of {
            None => (LOOKED_AT, 0),
            // The level of all workers is the last of the run's, and the card's first.
            Some((level, _)) if level + 1 == self.levels => (0, 0),
            // A card counts groups from its own first one on.
            Some((level, number)) => {
                (self.levels - 1 - level, number - (stock.workers.start / self.group) as usize)
            }
        }
    }

    /// A worker's share in measuring models.
    pub(crate) fn examiner(&self, worker: u32) -> CardExaminer {
        let stock = Arc::clone(self.home(worker));
        CardExaminer { worker: stock.seat(worker), stock, policy: self.policy, batches: self.batches }
    }
}

/// At most so many of the cards that can be used; or all of these, or none.
fn usable(most: u32, all: bool) -> Result<Vec<Card>, Error> {
    let mut found = cards()?;
    if found.iter().any(Card::is_usable) {
        found.retain(Card::is_usable);
    }
    let asked = most as usize;
    if found.is_empty() || (all && asked > found.len()) {
        let (action, why) = match found.len() {
            0 => ("use a GPU".into(), "the driver knows of none; see `grawa devices`".into()),
            count => {
                let why = format!("there are {count}; set machine.cards to {count} or less");
                (format!("use {asked} GPUs"), why)
            }
        };
        return Err(grawa_nn::Error::Device { action, why }.into());
    }
    found.truncate(asked);
    Ok(found)
}

/// Compiles the network for a card, for these workers, and puts the data there.
fn stock(recipe: &Recipe, material: &Material, card: &Card, workers: Range<u32>) -> Result<Stock, Error> {
    let Material { graph, order, train, test } = material;
    let settings = Settings {
        batch: recipe.train.batch as usize,
        workers: workers.len(),
        precision: recipe.machine.precision,
        fixed: recipe.machine.deterministic,
    };
    let room = card.memory as f64 * SHARE_OF_DATA;
    let mut fleet = Fleet::new(card, graph, settings)?;
    if let Some(inner) = &recipe.method.inner {
        fleet.group_by(inner.group as usize, (workers.start % inner.group.max(1)) as usize)?;
    }
    let bytes = |feed: &Feed| feed.split().bytes().map(<[u8]>::len);
    let holds = bytes(train).zip(bytes(test)).is_some_and(|(train, test)| ((train + test) as f64) < room);
    if holds {
        for (set, feed, steps) in [(Set::Train, train, net::STRIDE), (Set::Test, test, 1)] {
            let shape = feed.split().shape();
            let data = Bytes {
                shape: Shape {
                    channels: shape.channels as usize,
                    height: shape.height as usize,
                    width: shape.width as usize,
                },
                images: feed.split().bytes().unwrap_or_default(),
                labels: feed.split().labels(),
                table: feed.table(),
            };
            let crop = match feed.augment().crop {
                Crop::Random { pad, .. } => Some(pad),
                Crop::Whole | Crop::Resized { .. } => None,
            };
            fleet.hold(set, data, View { flip: feed.augment().flip, crop }, steps)?;
        }
    }
    Ok(Stock {
        deck: Deck::new(fleet),
        workers,
        graph: graph.clone(),
        order: *order,
        train: train.clone(),
        test: test.clone(),
        holds,
    })
}

/// The most workers of one card.
const MOST: u32 = 64;

/// What does not go together with a card, if anything: the key to change and why.
pub(crate) fn objection(recipe: &Recipe) -> Option<(&'static str, String)> {
    use crate::recipe::Pace;
    if recipe.train.pace == Pace::Free {
        let why = "on a GPU all workers step together; set train.pace = 'even', or machine.device = 'cpu'";
        return Some(("train.pace", why.into()));
    }
    None
}

#[cfg(test)]
mod tests;
