//! The variables of a Candle model as one vector.

use candle_core::backprop::GradStore;
use candle_core::{Result, Tensor, Var, bail};
use candle_nn::VarMap;
use grawa_core::Layout;

/// The variables that are trained, in an order that all workers share: a [`VarMap`] has none.
#[derive(Clone, Debug)]
pub struct FlatVars {
    vars: Vec<(String, Var)>,
}

impl FlatVars {
    /// The variables of a map that have a gradient. The others, such as the running statistics of batch norm, are not trained.
    pub fn new(map: &VarMap, gradients: &GradStore) -> Self {
        let map = map.data().lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut vars: Vec<_> = map.iter().map(|(name, var)| (name.clone(), var.clone())).collect();
        vars.retain(|(_, var)| gradients.get(var).is_some());
        vars.sort_by(|a, b| a.0.cmp(&b.0));
        FlatVars { vars }
    }

    /// The variables, for an optimizer of Candle.
    pub fn vars(&self) -> Vec<Var> {
        self.vars.iter().map(|(_, var)| var.clone()).collect()
    }

    /// The name and the place of each variable in the vector.
    pub fn layout(&self) -> std::result::Result<Layout, grawa_core::Error> {
        Layout::new(self.vars.iter().map(|(name, var)| (name.as_str(), var.dims().to_vec())))
    }

    /// Copies the variables into a vector.
    pub fn gather(&self) -> Result<Vec<f32>> {
        flatten(self.vars.iter().map(|(_, var)| var.as_tensor()))
    }

    /// Copies a vector into the variables.
    pub fn scatter(&self, mut values: &[f32]) -> Result<()> {
        for (name, var) in &self.vars {
            let Some((own, rest)) = values.split_at_checked(var.elem_count()) else {
                bail!("the vector ends inside of {name}");
            };
            var.set(&Tensor::from_slice(own, var.shape(), var.device())?)?;
            values = rest;
        }
        Ok(())
    }

    /// Copies the gradients of the variables into a vector.
    pub fn gradient(&self, gradients: &GradStore) -> Result<Vec<f32>> {
        let gradients: Option<Vec<_>> = self.vars.iter().map(|(_, var)| gradients.get(var)).collect();
        match gradients {
            Some(gradients) => flatten(gradients.into_iter()),
            None => bail!("a variable that is trained has no gradient"),
        }
    }
}

fn flatten<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    for tensor in tensors {
        values.extend(tensor.flatten_all()?.to_vec1::<f32>()?);
    }
    Ok(values)
}
