//! The choices of a run that are one word.

/// An enum of words that is read and printed.
#[doc(hidden)]
#[macro_export]
macro_rules! choices {
    ($(#[$about:meta])* $name:ident, $what:literal, $($(#[$doc:meta])* $variant:ident = $word:literal),+ $(,)?) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// Every choice, in the order of the documentation.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// The word of a recipe.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            /// What is wrong, in words.
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let known = || Self::ALL.iter().map(|choice| choice.as_str());
                Self::ALL.iter().copied().find(|choice| choice.as_str() == text).ok_or_else(|| {
                    let (hint, known) = (grawa_core::did_you_mean(text, known()), known().collect::<Vec<_>>().join(", "));
                    format!("there is no {} '{text}'{hint}; choose {known}", $what)
                })
            }
        }
    };
}

choices! {
    /// Who takes how many steps between rounds.
    Pace, "pace",
    /// Every worker takes τ: a run is a function of its recipe.
    Even = "even",
    /// M·τ in total: fast workers take more, and two runs may differ.
    Free = "free",
}

choices! {
    /// Where the batch-norm statistics of the evaluated model come from.
    BatchNorm, "batch-norm policy",
    /// The first worker's own, as they are.
    Keep = "keep",
    /// The workers' means, averaged, with the differences between workers added to the variance.
    Average = "average",
    /// Counted anew on training images.
    Recalibrate = "recalibrate",
}

choices! {
    /// How a number travels.
    Format, "format",
    /// As it is.
    F32 = "f32",
    /// As its difference to the last centre in bf16.
    Bf16 = "bf16",
}
