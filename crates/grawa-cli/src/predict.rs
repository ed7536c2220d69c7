//! `grawa predict`: what a trained model sees in pictures.

use crate::failure::Failure;
use crate::output::{print, warn};
use crate::source_args::SourceArgs;
use clap::Args;
use grawa_data::{Augment, Dataset, Sharding, check_pictures, unlabelled};
use grawa_nn::{State, Tensors};
use grawa_train::recipe::{BatchNorm, ByWorker, Device, RecipeError};
use grawa_train::{Evaluator, data_of};
use std::path::PathBuf;

/// Classify pictures with a trained model.
///
/// Prints the most probable classes of each picture. Pictures are JPEG or PNG with sides up to 16384 and up to 67108864 pixels: where
/// the run resizes (class folders) they are shown as in its evaluation; otherwise the largest middle part with the proportions of the data set's images is resized to their
/// size. A greyscale data set sees the luma of a colour picture, a colour data set sees grey in all channels. Then size and normalisation
/// are those of the run's evaluation. The data set itself is not needed: the model's file names the classes.
///
/// A file that is not a readable picture is reported, the others are classified, and the exit code is 1.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  grawa predict runs/first digit.png\n  grawa predict runs/pets/best photos/*.jpg --top 1\n  grawa predict runs/pets photo.jpg --json"
)]
pub(crate) struct Arguments {
    /// The run's folder (its newest checkpoint), RUN/best, a checkpoint, or a file of tensors
    #[arg(value_name = "MODEL")]
    what: PathBuf,
    /// Pictures
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
    /// How many classes to print for each picture
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// Print JSON: a list with image and classes (class, index, probability)
    #[arg(long)]
    json: bool,
}

/// Prints the classes of all pictures that can be read; false if one cannot.
pub(crate) fn run(arguments: &Arguments) -> Result<bool, Failure> {
    let (found, mut recipe) = arguments.source.find(&arguments.what, &[])?;
    let said = data_of(&Tensors::read(&found.model, "the model")?.metadata);
    let (shape, class_names, normalise) = match said {
        Some(said) => said,
        // A file of another program, or of an older version, does not say it.
        None => {
            let data = grawa_data::load(recipe.data.kind.name(), &recipe.data.dir)?;
            let name = |class: u32| {
                data.class_names.get(class as usize).cloned().unwrap_or_else(|| class.to_string())
            };
            (data.train.shape(), (0..data.classes).map(name).collect(), data.normalise)
        }
    };
    if let Some(wrong) = arguments.images.iter().find(|path| !path.is_file()) {
        let why = if wrong.is_dir() { "it is a folder" } else { "there is no such file" };
        let why = format!("{why}; give JPEG or PNG files");
        return Err(RecipeError::new(wrong.display().to_string(), why).into());
    }
    let checked = arguments.images.iter().zip(check_pictures(&arguments.images, &|| ()));
    let mut images = Vec::with_capacity(arguments.images.len());
    for (path, is_good) in checked {
        match is_good {
            Ok(()) => images.push(path.clone()),
            Err(error) => warn(&format!("error: {error}")),
        }
    }
    let is_complete = images.len() == arguments.images.len();
    if images.is_empty() {
        return Ok(false);
    }
    // One picture is enough, and nothing is trained.
    (recipe.train.workers, recipe.train.batch) = (1, images.len().min(32) as u32);
    (recipe.data.held_out, recipe.data.split, recipe.data.label_noise) =
        (0, Sharding::Iid, ByWorker::default());
    (recipe.evaluate.batch_norm, recipe.machine.device) = (BatchNorm::Keep, Device::Cpu);
    recipe.data.augment = Augment { flip: false, ..recipe.data.augment };
    let pictures = unlabelled(&images, shape, &normalise, recipe.data.augment)?;
    let classes = class_names.len() as u32;
    let data = Dataset { classes, class_names, normalise, train: pictures.clone(), test: pictures };
    let evaluator = Evaluator::new(&recipe, &data)?;
    found.check(evaluator.graph())?;
    let all = evaluator.probabilities(&State::load(evaluator.graph(), &found.model)?)?;
    let name = |class: usize| data.class_names.get(class).cloned().unwrap_or_else(|| class.to_string());
    let best = all.iter().map(|probabilities| largest(probabilities, arguments.top as usize));
    let named = images.iter().map(|path| path.display().to_string()).zip(best);
    if arguments.json {
        let class = |(class, p): (usize, f64)| serde_json::json!({ "class": name(class), "index": class, "probability": p });
        let each = named.map(|(image, best)| {
            serde_json::json!({ "image": image, "classes": best.into_iter().map(class).collect::<Vec<_>>() })
        });
        print(&format!("{:#}", serde_json::Value::from(each.collect::<Vec<_>>())));
        return Ok(is_complete);
    }
    for (image, best) in named {
        let best = best.into_iter().map(|(class, p)| format!("{} {:.1} %", name(class), 100.0 * p));
        print(&format!("{image}: {}", best.collect::<Vec<_>>().join(", ")));
    }
    Ok(is_complete)
}

/// The classes with the largest probabilities, in order; of equal ones the first.
fn largest(probabilities: &[f64], count: usize) -> Vec<(usize, f64)> {
    let mut all: Vec<(usize, f64)> = probabilities.iter().copied().enumerate().collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(count);
    all
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn the_most_probable_come_first() {
        assert_eq!(largest(&[0.1, 0.4, 0.1, 0.4], 3), [(1, 0.4), (3, 0.4), (0, 0.1)]);
        assert_eq!(largest(&[1.0], 3), [(0, 1.0)]);
    }
}
