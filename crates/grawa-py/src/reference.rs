//! `grawa_core::Sequential` with gradients and steps of Python functions: what the tests compare sessions with, bit for bit.

use crate::attend::wrong;
use grawa_core::{
    Error, Key, Layout, Method, Name, Optimizer, Preset, Prox, Replica, Sequential, Sgd, Share, StateKind,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

struct PythonReplica {
    layout: Layout,
    worker: u32,
    parameters: Vec<f32>,
    gradient: Vec<f32>,
    norms: Vec<f64>,
    /// (worker, step, parameters) → (loss, norms, gradient).
    gradient_of: Py<PyAny>,
    /// (parameters, gradient, centre or None, strength of the pull to it) → parameters.
    descend: Py<PyAny>,
    /// (seed, parameters) → norms.
    score: Py<PyAny>,
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four)).collect()
}

fn failed(error: PyErr) -> Error {
    Error::replica(error)
}

impl Replica for PythonReplica {
    fn layout(&self) -> &Layout {
        &self.layout
    }

    fn gradient(&mut self, key: Key) -> Result<f64, Error> {
        let (_, step) = key.place();
        let call = |py: Python<'_>| {
            let x = PyBytes::new(py, &bytes(&self.parameters));
            self.gradient_of.call1(py, (self.worker, step, x))?.extract::<(f64, Vec<f64>, Vec<u8>)>(py)
        };
        let (loss, norms, gradient) = Python::attach(call).map_err(failed)?;
        (self.norms, self.gradient) = (norms, numbers(&gradient));
        Ok(loss)
    }

    fn descend(&mut self, _: &Optimizer, _: f32, prox: &[Prox<'_>]) -> Result<bool, Error> {
        let call = |py: Python<'_>| {
            let array = |numbers: &[f32]| PyBytes::new(py, &bytes(numbers));
            let centre = prox.first().map(|prox| array(prox.centre));
            let strength = prox.first().map_or(0.0, |prox| prox.strength);
            let arguments = (array(&self.parameters), array(&self.gradient), centre, strength);
            self.descend.call1(py, arguments)?.extract::<Vec<u8>>(py)
        };
        self.parameters = numbers(&Python::attach(call).map_err(failed)?);
        Ok(self.parameters.iter().all(|x| x.is_finite()))
    }

    /// [`Settings::check`](grawa_session::Settings) refuses methods with a radius.
    fn ascend(&mut self, _: f32) -> Result<(), Error> {
        Ok(())
    }

    fn restore(&mut self) -> Result<(), Error> {
        Ok(())
    }

    fn norms(&mut self, out: &mut [f64]) -> Result<(), Error> {
        out.copy_from_slice(&self.norms);
        Ok(())
    }

    fn score(&mut self, key: Key, _: bool, out: &mut [f64]) -> Result<(), Error> {
        let call = |py: Python<'_>| {
            let x = PyBytes::new(py, &bytes(&self.parameters));
            self.score.call1(py, (crate::session::seed_of(key), x))?.extract::<Vec<f64>>(py)
        };
        out.copy_from_slice(&Python::attach(call).map_err(failed)?);
        Ok(())
    }

    fn reset(&mut self) {}

    fn parameters(&mut self) -> &mut [f32] {
        &mut self.parameters
    }

    fn gradients(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn copy(&mut self, _: StateKind) -> Result<Vec<f32>, Error> {
        Ok(self.parameters.clone())
    }

    fn put(&mut self, _: StateKind, values: &[f32]) -> Result<(), Error> {
        self.parameters = values.to_vec();
        Ok(())
    }
}

/// The names of all methods that share parameters.
#[pyfunction]
pub(crate) fn _methods() -> Vec<String> {
    let is_fit = |name: &&Name| {
        let method = Method::named(**name, Preset::Paper);
        method.share == Share::Parameters && method.inner.is_none()
    };
    Name::ALL.iter().filter(is_fit).map(ToString::to_string).collect()
}

/// The parameters of all workers after `steps` steps, and the evaluated model.
#[pyfunction]
#[allow(clippy::too_many_arguments)]
pub(crate) fn _sequential(
    py: Python<'_>,
    method: &str,
    tensors: Vec<(String, Vec<usize>)>,
    start: &[u8],
    workers: u32,
    steps: u64,
    seed: u64,
    gradient_of: Py<PyAny>,
    descend: Py<PyAny>,
    score: Py<PyAny>,
) -> PyResult<(Vec<Vec<u8>>, Vec<u8>)> {
    let layout = Layout::new(tensors).map_err(wrong)?;
    let replica = |worker| PythonReplica {
        layout: layout.clone(),
        worker,
        parameters: numbers(start),
        gradient: Vec::new(),
        norms: Vec::new(),
        gradient_of: gradient_of.clone_ref(py),
        descend: descend.clone_ref(py),
        score: score.clone_ref(py),
    };
    let method = method.parse().map_err(|error: Error| wrong(error))?;
    let mut run =
        Sequential::new(method, Sgd::PLAIN, seed, (0..workers).map(replica).collect()).map_err(wrong)?;
    run = run.over(steps);
    for _ in 0..steps {
        // The rate of `mlp.descend`, for methods that go by it.
        run.advance(0.05).map_err(wrong)?;
    }
    let evaluated = run.evaluated().first().map(|model| bytes(model)).unwrap_or_default();
    Ok((run.replicas().iter_mut().map(|replica| bytes(replica.parameters())).collect(), evaluated))
}
