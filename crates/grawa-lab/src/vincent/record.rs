//! What a run on the Vincent landscape leaves behind: plain data, for tables and pictures.

/// One method's run: the path of every worker and of the centre, and where the evaluated model ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Path {
    /// The method's name, such as `lgrawa`.
    pub method: String,
    /// For every worker its position before the first step and after each step and each pull.
    pub workers: Vec<Vec<[f64; 2]>>,
    /// The centre before the first round and after each round.
    pub centre: Vec<[f64; 2]>,
    /// How often a worker had left the domain for good and was replaced by the centre.
    pub replaced: usize,
    /// Where the run ended.
    pub end: End,
}

/// Where a run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// The evaluated model: the mean of the workers, or the moving centre of EASGD.
    pub at: [f64; 2],
    /// The greatest distance of a worker from that point.
    pub spread: f64,
    /// What that means.
    pub outcome: Outcome,
}

/// What became of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All workers agree, and lie in this valley of x and this valley of y (see `landscape::valley`).
    Valley(i32, i32),
    /// The workers did not come together.
    Split,
    /// The workers agree, but not at the bottom of a valley: f is above −1.9 there.
    Unsettled,
    /// The evaluated point is not finite or left the positive quadrant.
    Lost,
}

/// One run of a sweep.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// The method's name.
    pub method: String,
    /// The rule at the edge of the domain: `none`, `clip` or `reflect`.
    pub edge: String,
    /// The pull λ.
    pub pull: f64,
    /// The learning rate.
    pub rate: f64,
    /// Where it ended.
    pub end: End,
}
