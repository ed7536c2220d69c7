//! The table of methods: one row each, with the defaults of both presets.

use super::{
    By, Centre, Evaluate, Method, Norm, Outer, Preset, Pull, Rise, Score, Share, Source, Toward, Weighting,
};
use crate::Error;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// γ of the authors' code for scores of a batch: 0.9⁸.
const MOMENTUM: f64 = 0.430_467_21;
/// γ of the authors' code for the local variants.
const LOCAL_MOMENTUM: f64 = 0.85;

/// The names of the methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// Elastic averaging SGD.
    Easgd,
    /// Leader SGD.
    Lsgd,
    /// Gradient-based weighted averaging, by the norm of the whole gradient.
    Grawa,
    /// Model-level GRAWA.
    Mgrawa,
    /// Layer-level GRAWA.
    Lgrawa,
    /// MGRAWA by the gradients of the local steps.
    LocalMgrawa,
    /// LGRAWA by the gradients of the local steps.
    LocalLgrawa,
    /// Local SGD: the plain mean, from which workers restart. With λ < 1 it is the control of GRAWA's weights.
    Mean,
    /// Nesterov momentum on the centre; workers start each cycle from it.
    Diloco,
    /// Slow momentum on the centre, in units of the learning rate.
    Slowmo,
    /// The mean, and a push away from it that grows over the run.
    Dppf,
    /// Local SGD whose period grows as the learning rate falls.
    Qsr,
    /// Data-parallel SGD: gradients are averaged at every step.
    DpSgd,
    /// Data-parallel SAM.
    DpSam,
    /// A single worker.
    Sgd,
}

/// What each method is called on the command line and in the paper, and what it does; in the order of [`Name`].
const WORDS: [(Name, [&str; 3]); Name::Sgd as usize + 1] = [
    (Name::Easgd, ["easgd", "EASGD", "workers are pulled to a centre that follows their mean at a rate ρ"]),
    (Name::Lsgd, ["lsgd", "LSGD", "workers are pulled to the one with the smallest training loss"]),
    (Name::Grawa, ["grawa", "GRAWA", "the centre weighs workers by 1/‖g‖ of the whole gradient"]),
    (Name::Mgrawa, ["mgrawa", "MGRAWA", "the centre weighs workers by 1/Σ‖Gₖ‖ over layers, with momentum"]),
    (Name::Lgrawa, ["lgrawa", "LGRAWA", "the centre weighs every layer of every worker by its own 1/‖Gₖ‖"]),
    (
        Name::LocalMgrawa,
        ["local-mgrawa", "Local-MGRAWA", "MGRAWA with the norms of the local steps: no extra batch"],
    ),
    (
        Name::LocalLgrawa,
        ["local-lgrawa", "Local-LGRAWA", "LGRAWA with the norms of the local steps: no extra batch"],
    ),
    (
        Name::Mean,
        ["mean", "Mean", "Local SGD: the centre is the plain mean of the workers; they restart from it"],
    ),
    (
        Name::Diloco,
        [
            "diloco",
            "DiLoCo",
            "the centre takes a step of SGD with Nesterov momentum toward the mean; workers restart from it",
        ],
    ),
    (
        Name::Slowmo,
        [
            "slowmo",
            "SlowMo",
            "the centre has a slow momentum, in units of the learning rate; workers restart from it",
        ],
    ),
    (
        Name::Dppf,
        ["dppf", "DPPF", "workers are pulled to the mean and pushed away from it, ever more over the run"],
    ),
    (
        Name::Qsr,
        ["qsr", "QSR", "Local SGD with a period of (α/η)² steps: it grows as the learning rate falls"],
    ),
    (Name::DpSgd, ["dp-sgd", "DP+SGD", "data-parallel SGD: gradients are averaged at every step"]),
    (Name::DpSam, ["dp-sam", "DP+SAM", "data-parallel SAM: own ascent, averaged descent, at every step"]),
    (Name::Sgd, ["sgd", "SGD", "one worker by itself, no communication"]),
];

impl Name {
    /// All names, in the order of the table.
    pub const ALL: [Name; WORDS.len()] = {
        let (mut all, mut at) = ([Name::Easgd; WORDS.len()], 0);
        while at < all.len() {
            all[at] = WORDS[at].0;
            at += 1;
        }
        all
    };

    /// The name on the command line and in recipes.
    pub const fn as_str(self) -> &'static str {
        self.words()[0]
    }

    /// The name as the paper spells it.
    pub const fn title(self) -> &'static str {
        self.words()[1]
    }

    /// What the method does, in a sentence.
    pub const fn summary(self) -> &'static str {
        self.words()[2]
    }

    const fn words(self) -> [&'static str; 3] {
        WORDS[self as usize].1
    }
}

/// The methods' names as they are written on the command line.
pub fn names() -> Vec<&'static str> {
    Name::ALL.map(Name::as_str).into()
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Name {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let known = Name::ALL.into_iter().find(|name| name.as_str() == text);
        known.ok_or_else(|| Error::UnknownMethod { found: text.into() })
    }
}

/// The row of a name: what the name means in the paper that has introduced it. The numbers of the GRAWA paper's methods
/// are those of its authors' sample script, which lie inside the paper's grids; where a preset differs it says so.
pub(super) fn row(name: Name, preset: Preset) -> Method {
    let reference = preset == Preset::Reference;
    // Paper: one batch for all workers. The code draws one for each, with dropout on.
    let batch = Source::Batch { common: !reference, dropout: reference };
    let norm = |of, from, momentum| Score::Norm { of, from, momentum };
    // What most of the GRAWA paper's methods share.
    let grawa = Method {
        name,
        preset,
        share: Share::Parameters,
        score: Score::None,
        weighting: Weighting::Uniform,
        by: By::None,
        centre: Centre::Weighted,
        pull: Pull::Fixed(0.5),
        toward: Toward::New,
        push: 0.0,
        push_rise: Rise::Constant,
        prox: 0.01,
        period: 32,
        qsr: 0.0,
        inner: None,
        radius: None,
        evaluate: Evaluate::Mean,
    };
    let inverse = |score| Method { score, weighting: Weighting::Inverse, ..grawa.clone() };
    // Workers restart from the centre, and nothing pulls them between rounds.
    let local = Method { pull: Pull::Fixed(1.0), prox: 0.0, ..grawa.clone() };
    let gradients = Method { share: Share::Gradients, period: 1, ..local.clone() };
    match name {
        // Paper: λ toward the centre just made. The code: ρ/M toward the old one.
        Name::Easgd => Method {
            centre: Centre::Moving { rate: 0.1 },
            pull: if reference { Pull::RateOverWorkers } else { Pull::Fixed(0.1) },
            toward: if reference { Toward::Old } else { Toward::New },
            prox: 0.0,
            period: 4,
            evaluate: Evaluate::Centre,
            ..grawa
        },
        // Paper: the loss of the current batch. The code: the mean of the last four.
        Name::Lsgd => Method {
            score: Score::Loss { window: if reference { 4 } else { 1 } },
            weighting: Weighting::Smallest,
            pull: Pull::Fixed(0.1),
            prox: 0.1,
            period: 4,
            ..grawa
        },
        Name::Grawa => Method { prox: 0.0, ..inverse(norm(Norm::Gradient, batch, 0.0)) },
        Name::Mgrawa => inverse(norm(Norm::LayerSum, batch, MOMENTUM)),
        Name::Lgrawa => inverse(norm(Norm::Layers, batch, MOMENTUM)),
        Name::LocalMgrawa => inverse(norm(Norm::LayerSum, Source::Training { reset: true }, LOCAL_MOMENTUM)),
        // Paper: both local variants reset their estimate each round. The code does not in this one.
        Name::LocalLgrawa => {
            inverse(norm(Norm::Layers, Source::Training { reset: !reference }, LOCAL_MOMENTUM))
        }
        Name::Mean => local,
        // DiLoCo's paper: the outer optimizer. The period is ours: the paper's 500 steps of AdamW are for longer runs.
        Name::Diloco => {
            let outer = Outer { rate: 0.7, momentum: 0.9, nesterov: true, by_rate: None };
            Method { centre: Centre::Outer(outer), ..local }
        }
        // SlowMo's paper, Eq. 2 and 3: α = 1; β from 0.4 to 0.8.
        Name::Slowmo => {
            let outer = Outer { rate: 1.0, momentum: 0.7, nesterov: false, by_rate: Some(1.0) };
            Method { centre: Centre::Outer(outer), ..local }
        }
        // DPPF's paper has no prox. α (the pull) and λ (the push) are searched there; these are ours.
        Name::Dppf => Method { push: 0.1, push_rise: Rise::Cosine, prox: 0.0, ..grawa },
        // α is searched in the paper; with our rates from 0.1 down this one stretches the later part of a run.
        Name::Qsr => Method { qsr: 0.2, ..local },
        Name::DpSgd => gradients,
        Name::DpSam => Method { radius: Some(0.05), ..gradients },
        Name::Sgd => Method { share: Share::Nothing, pull: Pull::Fixed(0.0), period: 1, ..local },
    }
}

/// Knobs that had other defaults before `mean` was Local SGD; texts that were recorded then mean these.
pub(super) fn defaults_before(name: Name) -> &'static [(&'static str, f64)] {
    match name {
        Name::Mean => &[("pull", 0.5), ("prox", 0.01)],
        Name::Diloco | Name::Slowmo | Name::Dppf | Name::Qsr => &[("prox", 0.01)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_consistent_and_found_by_its_name() {
        for (at, name) in Name::ALL.into_iter().enumerate() {
            assert_eq!(name as usize, at);
            assert_eq!(name.as_str().parse::<Name>().unwrap(), name);
            for preset in [Preset::Paper, Preset::Reference] {
                let method = Method::named(name, preset);
                assert_eq!((method.name, method.preset, method.check()), (name, preset, Ok(())));
            }
        }
    }

    /// One name, one meaning, with both presets: that of the paper it comes from.
    #[test]
    fn names_mean_what_their_papers_say() {
        let outer =
            |rate, momentum, nesterov, by_rate| Centre::Outer(Outer { rate, momentum, nesterov, by_rate });
        for preset in [Preset::Paper, Preset::Reference] {
            let row = |name| Method::named(name, preset);
            // Local SGD.
            let mean = row(Name::Mean);
            assert_eq!((mean.pull, mean.prox, mean.push, mean.qsr), (Pull::Fixed(1.0), 0.0, 0.0, 0.0));
            assert_eq!(
                (mean.score, mean.weighting, mean.centre),
                (Score::None, Weighting::Uniform, Centre::Weighted)
            );
            // The others are Local SGD, but for what their papers change.
            let named = |name| Method { name, ..mean.clone() };
            let changed = [
                Method { centre: outer(0.7, 0.9, true, None), ..named(Name::Diloco) },
                Method { centre: outer(1.0, 0.7, false, Some(1.0)), ..named(Name::Slowmo) },
                Method { qsr: 0.2, ..named(Name::Qsr) },
                Method { push: 0.1, push_rise: Rise::Cosine, pull: Pull::Fixed(0.5), ..named(Name::Dppf) },
            ];
            for expected in changed {
                assert_eq!(row(expected.name), expected);
            }
            // The GRAWA paper's own keep its numbers.
            let paper = [Name::Mgrawa, Name::Lgrawa, Name::LocalMgrawa, Name::LocalLgrawa].map(row);
            assert!(paper.iter().all(|row| (row.pull, row.prox, row.period) == (Pull::Fixed(0.5), 0.01, 32)));
        }
    }

    #[test]
    fn the_momentum_is_nine_tenths_to_the_eighth() {
        assert!((MOMENTUM - 0.9f64.powi(8)).abs() < 1e-15);
    }

    #[test]
    fn an_unknown_name_suggests_the_nearest() {
        let hint = |text: &str| text.parse::<Name>().unwrap_err().to_string();
        assert!(hint("lgrwaa").contains("did you mean 'lgrawa'?"), "{}", hint("lgrwaa"));
        assert!(hint("EASGD").contains("did you mean 'easgd'?"));
        assert!(hint("local_mgrawa").contains("did you mean 'local-mgrawa'?"));
        assert!(!hint("adam").contains("did you mean"), "{}", hint("adam"));
        assert!(hint("adam").contains("easgd, lsgd, grawa"));
    }
}
