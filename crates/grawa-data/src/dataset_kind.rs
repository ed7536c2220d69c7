//! The data sets this crate knows by name, and what belongs to each: normalisation and augmentation.

use crate::augment::LEAST;
use crate::{Augment, Crop, Error, Normalise, Result};
use std::fmt;
use std::str::FromStr;

/// A data set known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// 1,797 handwritten digits of 8×8, inside the program.
    Digits,
    /// CIFAR-10: 60,000 colour images of 32×32, 10 classes.
    Cifar10,
    /// CIFAR-100: the same with 100 classes.
    Cifar100,
    /// MNIST: 70,000 handwritten digits of 28×28.
    Mnist,
    /// Fashion-MNIST: 70,000 articles of clothing of 28×28.
    FashionMnist,
    /// Class folders of JPEG or PNG files, as ImageNet has them.
    Folder,
}

impl DatasetKind {
    /// All of them.
    pub const ALL: [DatasetKind; 6] = [
        DatasetKind::Digits,
        DatasetKind::Cifar10,
        DatasetKind::Cifar100,
        DatasetKind::Mnist,
        DatasetKind::FashionMnist,
        DatasetKind::Folder,
    ];

    /// Its name, as `load` reads it.
    pub const fn name(self) -> &'static str {
        ["digits", "cifar10", "cifar100", "mnist", "fashion-mnist", "folder"][self as usize]
    }

    /// All names.
    pub fn names() -> Vec<&'static str> {
        Self::ALL.map(DatasetKind::name).to_vec()
    }

    /// How bytes become floats.
    ///
    /// CIFAR and ImageNet (folders) use the customary constants; the others use mean and standard deviation
    /// of their own training pixels.
    pub fn normalise(self) -> Normalise {
        match self {
            // The pixels of the digits are counts from 0 to 16.
            DatasetKind::Digits => Normalise::new(16.0, &[0.3058], &[0.3764]),
            DatasetKind::Cifar10 => {
                Normalise::new(255.0, &[0.4914, 0.4822, 0.4465], &[0.2023, 0.1994, 0.2010])
            }
            DatasetKind::Cifar100 => {
                Normalise::new(255.0, &[0.5071, 0.4867, 0.4408], &[0.2675, 0.2565, 0.2761])
            }
            DatasetKind::Mnist => Normalise::new(255.0, &[0.1307], &[0.3081]),
            DatasetKind::FashionMnist => Normalise::new(255.0, &[0.2860], &[0.3530]),
            DatasetKind::Folder => Normalise::new(255.0, &[0.485, 0.456, 0.406], &[0.229, 0.224, 0.225]),
        }
    }

    /// The usual augmentation of `network` on this set.
    ///
    /// On CIFAR, ResNet-20 sees 28×28 crops of the bare image, the narrow ResNet-18 of the gradient-norm
    /// study sees no augmentation, and every other network sees 32×32 crops of the image padded by 4; class
    /// folders give random resized crops of 224. Digits and clothes are not augmented: a mirrored digit
    /// is no digit.
    pub fn augment(self, network: &str) -> Augment {
        let network: String = network.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
        match self {
            DatasetKind::Digits | DatasetKind::Mnist | DatasetKind::FashionMnist => Augment::NONE,
            DatasetKind::Cifar10 | DatasetKind::Cifar100 if network.starts_with("resnet20") => {
                Augment { flip: true, crop: Crop::Random { pad: 0, size: 28 } }
            }
            DatasetKind::Cifar10 | DatasetKind::Cifar100 if network.starts_with("resnet18") => Augment::NONE,
            DatasetKind::Cifar10 | DatasetKind::Cifar100 => {
                Augment { flip: true, crop: Crop::Random { pad: 4, size: 32 } }
            }
            DatasetKind::Folder => Augment { flip: true, crop: Crop::Resized { size: 224, least: LEAST } },
        }
    }
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DatasetKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let plain = |name: &str| name.to_lowercase().replace(['-', '_'], "");
        let found = plain(text);
        // What most class folders are.
        if found == "imagenet" {
            return Ok(DatasetKind::Folder);
        }
        let known = DatasetKind::ALL.into_iter().find(|kind| plain(kind.name()) == found);
        known.ok_or_else(|| Error::UnknownDataset(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_and_slips_are_understood() {
        for kind in DatasetKind::ALL {
            assert_eq!(kind.name().parse::<DatasetKind>().unwrap(), kind);
        }
        assert_eq!("CIFAR-10".parse::<DatasetKind>().unwrap(), DatasetKind::Cifar10);
        assert_eq!("Fashion_MNIST".parse::<DatasetKind>().unwrap(), DatasetKind::FashionMnist);
        let text = "ciafr10".parse::<DatasetKind>().unwrap_err().to_string();
        assert!(text.contains("did you mean 'cifar10'?"), "{text}");
        assert_eq!("ImageNet".parse::<DatasetKind>().unwrap(), DatasetKind::Folder);
        let text = "svhn".parse::<DatasetKind>().unwrap_err().to_string();
        assert!(!text.contains("did you mean") && text.contains("digits, cifar10"), "{text}");
    }

    #[test]
    fn each_network_is_trained_as_customary() {
        let augment = |kind: DatasetKind, network| kind.augment(network).to_string();
        assert_eq!(augment(DatasetKind::Cifar10, "resnet20"), "flip+crop28");
        assert_eq!(augment(DatasetKind::Cifar10, "ResNet-20"), "flip+crop28");
        for network in ["vgg16", "pyramidnet", "wrn28-10", "densenet121", "resnet56"] {
            assert_eq!(augment(DatasetKind::Cifar100, network), "flip+pad4crop32");
        }
        assert_eq!(augment(DatasetKind::Cifar10, "resnet18-w4"), "none");
        assert_eq!(augment(DatasetKind::Folder, "resnet50"), "flip+resized224");
        assert_eq!(augment(DatasetKind::Digits, "cnn"), "none");
    }
}
