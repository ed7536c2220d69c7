//! The parameters of a Burn module as one vector: those that require a gradient, in the order of the module's fields. Frozen parameters
//! and the running statistics of batch norm are not among them.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use grawa_core::{Error, Layout};

/// The name and the place of each parameter in the vector.
pub fn layout<M: Module>(module: &M) -> Result<Layout, Error> {
    let mut spans = Spans::default();
    module.visit(&mut spans);
    Layout::new(spans.found)
}

/// Copies the parameters into a vector.
pub fn gather<M: Module>(module: &M) -> Result<Vec<f32>, Error> {
    collect(module, None)
}

/// Copies the gradients of the parameters into a vector: zeros for a parameter that the loss does not depend on.
pub fn gradient<M: Module>(module: &M, gradients: &GradientsParams) -> Result<Vec<f32>, Error> {
    collect(module, Some(gradients))
}

/// The module with the parameters of a vector. They keep their ids, so an optimizer keeps their state.
pub fn scatter<M: Module>(module: M, values: &[f32]) -> Result<M, Error> {
    let (found, expected) = (values.len(), layout(&module)?.len());
    if found != expected {
        return Err(Error::WrongLength { what: "the parameters".into(), found, expected });
    }
    Ok(module.map(&mut Scatter { rest: values }))
}

fn collect<M: Module>(module: &M, gradients: Option<&GradientsParams>) -> Result<Vec<f32>, Error> {
    let mut collect = Collect { gradients, values: Ok(Vec::new()) };
    module.visit(&mut collect);
    collect.values
}

#[derive(Default)]
struct Spans {
    path: Vec<String>,
    found: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for Spans {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() {
            self.found.push((self.path.join("."), param.dims().to_vec()));
        }
    }
}

struct Collect<'a> {
    /// `None` for the parameters themselves.
    gradients: Option<&'a GradientsParams>,
    values: Result<Vec<f32>, Error>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let (Ok(values), true) = (&mut self.values, param.is_require_grad()) else { return };
        let tensor = match self.gradients {
            Some(gradients) => gradients.get(param.id).unwrap_or_else(|| param.zeros_like()),
            None => param.base(),
        };
        match tensor.into_data().try_into_vec_as::<f32>() {
            Ok(own) => values.extend(own),
            Err(error) => self.values = Err(Error::replica(error.to_string())),
        }
    }
}

struct Scatter<'a> {
    rest: &'a [f32],
}

impl ModuleMapper for Scatter<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_require_grad() {
            return param;
        }
        let (own, rest) = self.rest.split_at(param.shape().num_elements());
        self.rest = rest;
        param.map(|old| {
            let data = TensorData::new(own.to_vec(), old.shape());
            Tensor::from_data(data, (&old.device(), old.dtype())).require_grad()
        })
    }
}
