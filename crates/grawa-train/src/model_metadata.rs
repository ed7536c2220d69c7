//! What a file of tensors says about its model: enough to use it without the run's folder and without the data.
//!
//! | key | value |
//! |---|---|
//! | `format` | `pt`: names and shapes are PyTorch's |
//! | `network` | the network's name |
//! | `data`, `image` | the data set, and the shape of its images: `3x32x32` |
//! | `input` | the shape that the network sees: `3x28x28` |
//! | `augment` | the augmentation; evaluation uses the middle of the image where training crops |
//! | `classes` | the names of the classes, as a JSON list |
//! | `levels`, `mean`, `std` | (byte ÷ levels − mean) ÷ std, JSON lists by channel |
//! | `recipe_digest` | the digest of the recipe, as in the checkpoint's manifest |
//! | `step`, `epochs` | how long it was trained |
//! | `test_error`, `model` | of the best model: its error, from 0 to 1, and which model was measured |

use crate::Recipe;
use grawa_data::{Dataset, Normalise, Shape};
use grawa_nn::{Graph, Metadata};

/// What is known of a model before it is trained.
pub(crate) fn describe(recipe: &Recipe, data: &Dataset, graph: &Graph) -> Metadata {
    let input = graph.input();
    let name = |class: usize| data.class_names.get(class).cloned().unwrap_or_else(|| class.to_string());
    let classes: Vec<String> = (0..graph.classes()).map(name).collect();
    let image = data.train.shape();
    let Normalise { levels, mean, std } = &data.normalise;
    let said = [
        ("format", "pt".into()),
        ("network", graph.name().into()),
        ("data", recipe.data.kind.to_string()),
        ("image", format!("{}x{}x{}", image.channels, image.height, image.width)),
        ("input", format!("{}x{}x{}", input.channels, input.height, input.width)),
        ("augment", recipe.data.augment.to_string()),
        ("classes", serde_json::Value::from(classes).to_string()),
        ("levels", levels.to_string()),
        ("mean", format!("{mean:?}")),
        ("std", format!("{std:?}")),
    ];
    said.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// What the metadata of a model say of its data: the shape of the images, the names of the classes, and how bytes become floats.
pub fn data_of(metadata: &Metadata) -> Option<(Shape, Vec<String>, Normalise)> {
    let sides: Vec<u32> =
        metadata.get("image")?.split('x').map(|side| side.parse().ok()).collect::<Option<_>>()?;
    let [channels, height, width] = sides[..] else { return None };
    let list = |key: &str| serde_json::from_str::<Vec<f32>>(metadata.get(key)?).ok();
    let classes = serde_json::from_str(metadata.get("classes")?).ok()?;
    let levels = metadata.get("levels")?.parse().ok()?;
    Some((
        Shape::new(channels, height, width),
        classes,
        Normalise::new(levels, &list("mean")?, &list("std")?),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_data::DatasetKind;

    #[test]
    fn a_model_tells_what_its_images_are() {
        let data = grawa_data::digits().unwrap();
        let recipe = Recipe::for_data(DatasetKind::Digits, None).unwrap();
        let graph = recipe.model.build(grawa_nn::Shape::image(1, 8), 10).unwrap();
        let metadata = describe(&recipe, &data, &graph);
        assert_eq!((metadata["network"].as_str(), metadata["mean"].as_str()), ("digits", "[0.3058]"));
        let (shape, classes, normalise) = data_of(&metadata).unwrap();
        assert_eq!((shape, normalise), (data.train.shape(), data.normalise.clone()));
        assert_eq!((classes.len(), classes[3].as_str()), (10, "3"));
        assert_eq!(data_of(&Metadata::new()), None);
    }
}
