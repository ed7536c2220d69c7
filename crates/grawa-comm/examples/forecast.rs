//! What a round costs on a cluster of any size, by the closed formula: a member sends 2·(M−1)/M of a vector, or half of that if
//! it has no weight, and its report to every other member.
//!
//! ```text
//! cargo run --release -p grawa-comm --example forecast -- [FLOATS [MBIT_PER_SECOND [LATENCY_MS]]]
//! ```

/// What a worker sends to every other before a round: its score, its counts, and a header.
const REPORT: f64 = 100.0;
/// Messages that follow each other in a round: two operations with two round trips to the coordinator each, and three transfers.
const HOPS: f64 = 11.0;

fn main() -> Result<(), std::num::ParseFloatError> {
    let arguments: Vec<f64> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let number = |at: usize, default: f64| arguments.get(at).copied().unwrap_or(default);
    // By default the parameters of WRN-28-10, on gigabit links.
    let (floats, rate, latency) = (number(0, 36_536_884.0), number(1, 1000.0), number(2, 0.2));
    println!("{floats} floats on links of {rate} Mbit/s with a latency of {latency} ms");
    println!("{:>7} {:>14} {:>12}", "workers", "MB per worker", "s per round");
    for workers in [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 200.0] {
        let sent = 8.0 * floats * (workers - 1.0) / workers + REPORT * (workers - 1.0);
        let seconds = sent / (rate * 1e6 / 8.0) + HOPS * latency / 1e3;
        println!("{workers:>7} {:>14.1} {seconds:>12.2}", sent / 1e6);
    }
    Ok(())
}
