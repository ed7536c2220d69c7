//! The digest of a plan: members compare it before they execute the plan.

use super::Plan;
use std::fmt::{self, Write};

/// FNV-1a over the bytes of a text.
struct Digest(u64);

impl Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

impl Plan {
    /// A number that differs where plans differ in anything.
    pub fn digest(&self) -> u64 {
        let mut digest = Digest(0xcbf2_9ce4_8422_2325);
        // The derived text names every field, and prints a float so that it reads back as the same bits. Writing cannot fail.
        let _ = write!(digest, "{self:?}");
        digest.0
    }
}
