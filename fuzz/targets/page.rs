//! What browsers and strangers ask of the coordinator's page.
#![no_main]

#[path = "../../crates/grawa-cli/src/page/http.rs"]
#[allow(dead_code, reason = "who answers is not fuzzed")]
mod http;

use libfuzzer_sys::fuzz_target;

// What is asked is known when the head is there, and stays what it is whatever comes after it.
fuzz_target!(|bytes: &[u8]| {
    let whole = http::asked(bytes, "gpu3.local:8080");
    for end in 0..bytes.len() {
        let early = http::asked(&bytes[..end], "gpu3.local:8080");
        assert!(early.is_none() || early == whole);
    }
});
