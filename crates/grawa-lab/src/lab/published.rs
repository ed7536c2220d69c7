//! The numbers of the paper's tables, for comparison with measurements at its scale.

use grawa_core::Name;
use grawa_data::Shape;
use grawa_train::recipe::Facts;

/// A published mean and its deviation (of the population of three seeds, as the authors' data show).
pub(super) type Published = (f64, f64);

/// The methods, in the order of the columns below.
const METHODS: [Name; 6] = [Name::Easgd, Name::Lsgd, Name::Mgrawa, Name::Lgrawa, Name::DpSgd, Name::DpSam];

/// A study, and the numbers of every method.
pub(super) type Row = (&'static str, [Published; 6]);

/// The paper's table of test errors.
#[rustfmt::skip]
pub(super) const ERRORS: &[Row] = &[
    ("cifar10-resnet20", [(9.22, 0.20), (9.23, 0.16), (8.99, 0.27), (8.93, 0.20), (9.67, 0.06), (10.91, 0.05)]),
    ("cifar10-vgg16", [(7.68, 0.25), (7.65, 0.13), (7.64, 0.15), (7.52, 0.13), (8.67, 0.06), (8.92, 0.39)]),
    ("cifar10-pyramidnet", [(4.06, 0.16), (3.98, 0.05), (4.04, 0.11), (3.79, 0.08), (4.19, 0.07), (5.54, 0.06)]),
    ("cifar100-densenet", [(23.61, 0.32), (22.55, 0.14), (22.82, 0.28), (22.72, 0.22), (23.42, 0.07), (28.48, 0.09)]),
    ("cifar100-wrn", [(20.37, 0.15), (20.01, 0.21), (19.68, 0.13), (19.71, 0.02), (21.47, 0.08), (29.54, 0.07)]),
    ("cifar100-pyramidnet", [(19.02, 0.06), (19.25, 0.12), (19.05, 0.14), (18.82, 0.17), (19.59, 0.25), (29.85, 0.96)]),
    ("imagenet-resnet50", [(28.59, 0.05), (26.17, 0.06), (25.35, 0.04), (25.68, 0.08), (25.49, 0.04), (36.92, 0.11)]),
];

/// The paper's table of Frobenius norms: sums of Ritz values.
#[rustfmt::skip]
pub(super) const RITZ_SUMS: &[Row] = &[
    ("cifar10-resnet20", [(84.12, 5.32), (317.96, 4.55), (84.32, 3.72), (78.13, 2.06), (324.97, 23.79), (113.45, 5.41)]),
    ("cifar10-vgg16", [(258.42, 40.50), (252.70, 17.94), (199.18, 9.47), (227.03, 10.36), (864.52, 73.77), (134.81, 2.38)]),
    ("cifar10-pyramidnet", [(341.28, 35.97), (526.61, 73.22), (297.59, 48.31), (240.06, 59.12), (474.26, 53.80), (318.55, 68.38)]),
    ("cifar100-densenet", [(194.04, 12.98), (194.65, 3.67), (164.89, 25.65), (177.29, 10.13), (435.74, 49.55), (633.69, 47.30)]),
    ("cifar100-wrn", [(964.11, 83.16), (1037.38, 126.20), (584.13, 77.42), (708.94, 109.86), (1382.94, 234.10), (647.11, 56.59)]),
    ("cifar100-pyramidnet", [(241.70, 31.38), (750.07, 52.73), (233.98, 14.82), (255.47, 47.52), (284.66, 26.87), (145.57, 5.38)]),
];

/// The paper's table of generalisation gaps.
#[rustfmt::skip]
pub(super) const GAPS: &[Row] = &[
    ("cifar10-resnet20", [(6.75, 0.32), (6.83, 0.27), (6.50, 0.24), (6.39, 0.16), (7.45, 0.59), (9.35, 0.52)]),
    ("cifar10-vgg16", [(7.08, 0.26), (7.19, 0.17), (6.86, 0.15), (6.22, 0.34), (8.38, 0.30), (8.59, 0.54)]),
    ("cifar100-densenet", [(23.53, 0.31), (22.49, 0.18), (22.49, 0.45), (22.11, 0.59), (23.42, 0.07), (28.35, 0.26)]),
];

/// The number of a study and a method in a table.
pub(super) fn published(table: &[Row], study: &str, method: Name) -> Option<Published> {
    let (_, row) = table.iter().find(|(name, _)| *name == study)?;
    METHODS.iter().position(|&known| known == method).map(|column| row[column])
}

/// The published size of a study's training set in class folders: that of ImageNet (ILSVRC 2012), whose pictures are resized.
pub(super) fn size(study: &str) -> Option<Facts> {
    let imagenet =
        Facts { examples: 1_281_167, classes: 1_000, shape: Shape::new(3, 224, 224), data_bytes: 0 };
    (study == "imagenet-resnet50").then_some(imagenet)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_study_and_method() {
        assert_eq!(published(ERRORS, "cifar10-resnet20", Name::Lgrawa), Some((8.93, 0.20)));
        assert_eq!(published(RITZ_SUMS, "cifar100-densenet", Name::DpSam), Some((633.69, 47.30)));
        assert_eq!(published(GAPS, "cifar100-densenet", Name::Mean), None);
        assert_eq!(published(GAPS, "digits", Name::Easgd), None);
    }
}
