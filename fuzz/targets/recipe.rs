//! Recipes: any text is read or refused, and what is read is printed and read back the same.
#![no_main]
use grawa_train::Recipe;
use grawa_train::recipe::{Overrides, Study};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let read = |text: &str| Overrides::default().file("fuzz.toml", text).and_then(|said| Recipe::resolve(&said));
    if let Ok(recipe) = read(text) {
        assert_eq!(read(&recipe.to_toml()), Ok(recipe));
    }
    if let Ok(recipe) = Overrides::default().set(text).and_then(|said| Recipe::resolve(&said)) {
        assert_eq!(read(&recipe.to_toml()), Ok(recipe));
    }
    // Its points are not made: a grid multiplies without end.
    let _ = Study::parse("fuzz.toml", text);
});
