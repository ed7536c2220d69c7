//! What users write: methods as text and TOML, amounts, schedules. What is read is printed and read back the same.
#![no_main]
use grawa_core::{Amount, Method, Schedule};

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(method) = text.parse::<Method>() {
        assert_eq!(method.to_string().parse::<Method>().as_ref(), Ok(&method));
        assert_eq!(toml::from_str::<Method>(&method.to_toml()).as_ref(), Ok(&method));
    }
    if let Ok(method) = toml::from_str::<Method>(text) {
        assert_eq!(method.to_string().parse::<Method>().as_ref(), Ok(&method));
    }
    if let Ok(amount) = text.parse::<Amount>() {
        assert!(amount.to_string().parse::<Amount>().is_ok());
    }
    if let Ok(schedule) = text.parse::<Schedule>() {
        assert!(schedule.to_string().parse::<Schedule>().is_ok());
    }
});
