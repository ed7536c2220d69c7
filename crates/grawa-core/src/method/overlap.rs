//! Which rounds may overlap with training: workers are then pulled to the centre of the round before.

use super::{Centre, Method, Pull};
use crate::Plan;

/// Why rounds of this pull and centre cannot overlap, if they cannot.
fn objection(pull: f32, centre: Centre) -> Option<&'static str> {
    match (pull, centre) {
        (_, Centre::Outer(_)) => Some(
            "an outer optimizer moves the centre by what the workers did since the last round, and with overlap they are pulled to the \
             centre before it; leave train.overlap away, or set method.centre = 'weighted' and method.pull below 1",
        ),
        (pull, _) if pull >= 1.0 => Some(
            "with pull = 1 a round replaces every worker by the centre, and with overlap by the centre of the round before: two models \
             would be trained in turn, each with half of the steps; leave train.overlap away, or set method.pull below 1, such as 0.5",
        ),
        _ => None,
    }
}

impl Method {
    /// Why rounds of this method cannot overlap with training, if they cannot.
    ///
    /// ```
    /// use grawa_core::Method;
    /// let objects = |method: &str| Ok::<bool, grawa_core::Error>(method.parse::<Method>()?.overlap_objection().is_some());
    /// assert!(objects("mean:pull=1")? && objects("diloco")? && !objects("mean:pull=0.5")?);
    /// # Ok::<(), grawa_core::Error>(())
    /// ```
    pub fn overlap_objection(&self) -> Option<&'static str> {
        let strongest = match (self.pull, self.centre) {
            // A group may shrink to one worker.
            (Pull::RateOverWorkers, Centre::Moving { rate }) => rate,
            (Pull::RateOverWorkers, _) => 0.0,
            (Pull::Fixed(pull), _) => pull,
        };
        objection(strongest as f32, self.centre)
    }
}

impl Plan {
    /// The same for one round.
    pub fn overlap_objection(&self) -> Option<&'static str> {
        objection(self.pull, self.centre)
    }
}

#[cfg(test)]
mod tests {
    use crate::{Method, Name, Preset};

    /// All that a table of methods, a knob or a small group can make of the pull.
    #[test]
    fn a_pull_that_can_reach_one_is_refused() {
        let objection = |text: &str| text.parse::<Method>().unwrap().overlap_objection();
        for refused in [
            "mean:pull=1",
            "mean:pull=0.99999999",
            "mgrawa:pull=1",
            "lsgd:pull=1",
            "dppf:pull=1",
            "easgd:pull=1",
            "easgd:pull=rate/M,rate=1",
            "qsr:pull=1",
            "diloco",
            "diloco:pull=0.5",
            "slowmo",
        ] {
            assert!(
                objection(refused).is_some_and(|why| why.contains("leave train.overlap away")),
                "{refused}"
            );
        }
        for allowed in
            ["mean:pull=0.5", "easgd", "easgd:preset=reference", "qsr:pull=0.9", "lsgd", "dppf:pull=0.5"]
        {
            assert_eq!(objection(allowed), None, "{allowed}");
        }
        for name in Name::ALL {
            let method = Method::named(name, Preset::Paper);
            let is_whole = method.pull_of(1) >= 1.0;
            assert!(!is_whole || method.overlap_objection().is_some(), "{name}");
        }
    }
}
