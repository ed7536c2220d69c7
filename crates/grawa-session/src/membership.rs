//! Which processes a run has: one, a fixed number, or members that join and leave.

use crate::elastic::ElasticState;
use grawa_comm::{Collective, Elastic};

/// The processes of a run, as one of them sees them.
pub enum Membership {
    /// All workers are in this process.
    Alone,
    /// The processes are those that began.
    Fixed(Box<dyn Collective>),
    /// Processes join and leave.
    Elastic(Box<dyn Elastic>, Box<ElasticState>),
}

impl Membership {
    /// What connects all processes, if there are several.
    pub fn all(&mut self) -> Option<&mut dyn Collective> {
        match self {
            Membership::Alone => None,
            Membership::Fixed(all) => Some(&mut **all),
            Membership::Elastic(all, _) => Some(&mut **all),
        }
    }

    pub fn is_elastic(&self) -> bool {
        matches!(self, Membership::Elastic(..))
    }

    /// The state of an elastic member.
    pub fn elastic(&self) -> Option<&ElasticState> {
        if let Membership::Elastic(_, state) = self { Some(state) } else { None }
    }

    pub fn elastic_mut(&mut self) -> Option<&mut ElasticState> {
        if let Membership::Elastic(_, state) = self { Some(state) } else { None }
    }

    /// The number of this process.
    pub fn id(&mut self) -> u32 {
        self.all().map_or(0, |all| all.id())
    }

    /// Whether this is the first process.
    pub fn is_first(&mut self) -> bool {
        self.all().is_none_or(|all| all.members().first() == Some(&all.id()))
    }
}
