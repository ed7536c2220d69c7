//! The network as a [`Replica`]: grawa takes the steps, Candle computes the gradients.

use crate::{FlatVars, Network, score_batch, train_batch};
use grawa_core::norm::norms;
use grawa_core::step::ascend;
use grawa_core::{Error, Key, Layout, Moments, Optimizer, Prox, Purpose, Replica, StateKind};

/// A replica of the network. The vector of its parameters is what counts: each pass copies it into Candle's variables.
#[derive(Debug)]
pub struct CandleReplica {
    network: Network,
    vars: FlatVars,
    layout: Layout,
    parameters: Vec<f32>,
    gradient: Vec<f32>,
    moments: Moments,
    saved: Vec<f32>,
    /// Which shard of the examples it reads, of how many.
    shard: (u32, u32),
}

impl CandleReplica {
    /// A replica that reads this shard of the examples, of how many.
    pub fn new(shard: u32, of: u32) -> Result<Self, Error> {
        let (network, vars) = Network::new().map_err(Error::replica)?;
        let layout = vars.layout()?;
        let parameters = initial(&layout);
        let (gradient, moments) = (vec![0.0; layout.len()], Moments::new(layout.len()));
        Ok(CandleReplica {
            network,
            vars,
            layout,
            parameters,
            gradient,
            moments,
            saved: Vec::new(),
            shard: (shard, of),
        })
    }

    /// The mean loss on these examples, and its gradient.
    fn pass(&mut self, numbers: &[u64]) -> candle_core::Result<f64> {
        self.vars.scatter(&self.parameters)?;
        let loss = self.network.loss(numbers)?;
        self.gradient = self.vars.gradient(&loss.backward()?)?;
        Ok(f64::from(loss.to_scalar::<f32>()?))
    }
}

/// All replicas of a run must begin with the same parameters, and Candle's random numbers on a CPU cannot be seeded.
fn initial(layout: &Layout) -> Vec<f32> {
    let mut draws = Key::new(1, Purpose::Init).stream();
    let mut parameters = Vec::new();
    for span in layout.spans() {
        let scale = match span.shape() {
            [_, inputs] => (1.0 / *inputs as f64).sqrt(),
            _ => 0.0,
        };
        parameters.extend((0..span.len()).map(|_| (draws.normal() * scale) as f32));
    }
    parameters
}

impl Replica for CandleReplica {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn gradient(&mut self, key: Key) -> Result<f64, Error> {
        let ((_, step), (shard, of)) = (key.place(), self.shard);
        self.pass(&train_batch(shard, of, step)).map_err(Error::replica)
    }

    fn descend(&mut self, optimizer: &Optimizer, rate: f32, prox: &[Prox<'_>]) -> Result<bool, Error> {
        self.moments.descend(optimizer, rate, &mut self.parameters, &self.gradient, prox)
    }

    fn ascend(&mut self, radius: f32) -> Result<(), Error> {
        self.saved.resize(self.parameters.len(), 0.0);
        ascend(radius, &mut self.parameters, &mut self.saved, &self.gradient)
    }

    fn restore(&mut self) -> Result<(), Error> {
        self.parameters.copy_from_slice(&self.saved);
        Ok(())
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), Error> {
        norms(&self.layout, &self.gradient, out)
    }

    fn score(&mut self, key: Key, _dropout: bool, out: &mut [f64]) -> Result<(), Error> {
        self.pass(&score_batch(key)).map_err(Error::replica)?;
        norms(&self.layout, &self.gradient, out)
    }

    fn assign_shard(&mut self, shard: u32, of: u32) -> Result<(), Error> {
        self.shard = (shard, of);
        Ok(())
    }

    fn reset(&mut self) {
        self.moments.reset();
    }

    fn parameters(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    fn gradients(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn copy(&mut self, what: StateKind) -> Result<Vec<f32>, Error> {
        Ok(match what {
            StateKind::Parameters => self.parameters.clone(),
            what => self.moments.copy(what),
        })
    }

    fn put(&mut self, what: StateKind, values: &[f32]) -> Result<(), Error> {
        match what {
            StateKind::Parameters => what.fill(&mut self.parameters, values),
            what => self.moments.put(what, values),
        }
    }
}
