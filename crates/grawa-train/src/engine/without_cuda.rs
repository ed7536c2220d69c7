//! Stands for workers on GPUs in a build without CUDA: there are none.

use super::{EvaluateShard, Workload};
use crate::snapshot::Part;
use crate::worker_set::WorkerSet;
use crate::{Error, Recipe};
use std::ops::Range;

#[derive(Debug)]
pub(crate) enum CudaSet {}

impl CudaSet {
    pub(crate) fn new(_: &Recipe, _: &Workload) -> Result<Self, Error> {
        Err(grawa_nn::Error::BuiltWithoutCuda.into())
    }

    pub(crate) fn of_some(_: &Recipe, _: &Workload, _: Range<u32>) -> Result<Self, Error> {
        Err(grawa_nn::Error::BuiltWithoutCuda.into())
    }

    pub(crate) fn is_in_step(&self, _: &[Part]) -> bool {
        match *self {}
    }

    pub(crate) fn warnings(&self) -> Vec<String> {
        match *self {}
    }

    pub(crate) fn load(self, _: &mut [Part]) -> Result<Box<dyn WorkerSet>, Error> {
        match self {}
    }

    pub(crate) fn evaluator(self) -> Box<dyn EvaluateShard> {
        match self {}
    }
}
