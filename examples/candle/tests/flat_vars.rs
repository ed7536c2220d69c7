//! Variables as one vector.

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_nn::{ModuleT, VarBuilder, VarMap};
use grawa_candle::FlatVars;

/// Variables come in the order of their names, without the running statistics of batch norm, and back.
#[test]
fn variables_become_a_vector_and_back() -> Result<()> {
    let map = VarMap::new();
    let builder = VarBuilder::from_varmap(&map, DType::F32, &Device::Cpu);
    let linear = candle_nn::linear(4, 3, builder.pp("linear"))?;
    let norm = candle_nn::batch_norm(3, 1e-5, builder.pp("batch_norm"))?;
    let inputs = Tensor::randn(0f32, 1.0, (5, 4), &Device::Cpu)?;
    let outputs = norm.forward_t(&linear.forward(&inputs)?.unsqueeze(2)?.unsqueeze(3)?, true)?;
    let gradients = outputs.sqr()?.sum_all()?.backward()?;
    let vars = FlatVars::new(&map, &gradients);

    let layout = vars.layout().unwrap();
    let names: Vec<_> = layout.spans().iter().map(|span| span.name()).collect();
    assert_eq!(names, ["batch_norm.bias", "batch_norm.weight", "linear.bias", "linear.weight"]);
    assert_eq!(map.all_vars().len(), 6);
    assert_eq!(vars.gradient(&gradients)?.len(), layout.len());

    let changed: Vec<f32> = vars.gather()?.iter().map(|x| x + 1.0).collect();
    vars.scatter(&changed)?;
    assert_eq!(vars.gather()?, changed);
    let weight = layout.find("linear.weight").unwrap();
    assert_eq!(linear.weight().flatten_all()?.to_vec1::<f32>()?, changed[weight.range()]);
    assert!(vars.scatter(&changed[1..]).unwrap_err().to_string().contains("linear.weight"));
    Ok(())
}
