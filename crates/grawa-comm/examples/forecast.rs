//! What a round would cost on a cluster of any size, from the closed formula of [`forecast`]: bytes and seconds on links of a given
//! rate.
//!
//! ```text
//! cargo run --release -p grawa-comm --example forecast -- [FLOATS [MBIT_PER_SECOND [LATENCY_MS]]]
//! ```

use grawa_comm::group::forecast::{Link, all_gather, all_reduce};

/// What a worker sends before every round: its score and its counts.
const REPORT: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<f64> = std::env::args().skip(1).map(|text| text.parse()).collect::<Result<_, _>>()?;
    let number = |at: usize, default: f64| arguments.get(at).copied().unwrap_or(default);
    // By default the parameters of WRN-28-10, on gigabit links.
    let (floats, rate, latency) = (number(0, 36_536_884.0) as usize, number(1, 1000.0), number(2, 0.2));
    let link = Link { rate: rate * 1e6 / 8.0, latency: latency / 1e3 };
    println!("{floats} floats on links of {rate} Mbit/s with a latency of {latency} ms");
    println!("{:>7} {:>14} {:>12} {:>16}", "workers", "MB per worker", "s per round", "s with one leader");
    for workers in [2usize, 4, 8, 16, 32, 64, 128, 200] {
        let reports = all_gather(workers, REPORT, link);
        let all = all_reduce(&vec![true; workers], floats, link);
        let one = all_reduce(&(0..workers).map(|rank| rank == 0).collect::<Vec<_>>(), floats, link);
        let sent = all.bytes.iter().chain(&reports.bytes).copied().max().unwrap_or(0);
        println!(
            "{workers:>7} {:>14.1} {:>12.2} {:>16.2}",
            sent as f64 / 1e6,
            all.seconds + reports.seconds,
            one.seconds + reports.seconds
        );
    }
    Ok(())
}
