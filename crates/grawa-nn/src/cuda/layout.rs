//! The order of weights: the GPU stores the kernels of a convolution as out × taps × in, the host as out × in × taps.

use super::compile::Span;
use rayon::prelude::*;

/// Converts a vector from the order of the host to that of the GPU, or back. Checkpoints convert all vectors of all workers, so
/// all cores take part.
pub(super) fn relayout(spans: &[Span], vector: &[f32], to_device: bool) -> Vec<f32> {
    let mut converted = vector.to_vec();
    for span in spans.iter().filter(|span| span.taps > 1) {
        let (start, taps, channels) = (span.start as usize, span.taps as usize, span.channels as usize);
        let (part, kernel) = (start..start + span.length as usize, taps * channels);
        let kernels = vector[part.clone()].par_chunks_exact(kernel);
        kernels.zip(converted[part].par_chunks_exact_mut(kernel)).with_min_len(8).for_each(|(from, to)| {
            for tap in 0..taps {
                for channel in 0..channels {
                    let (host, device) = (channel * taps + tap, tap * channels + channel);
                    if to_device {
                        to[device] = from[host];
                    } else {
                        to[host] = from[device];
                    }
                }
            }
        });
    }
    converted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_and_channels_change_places_and_back() {
        // A bias of one number, two kernels of two taps and three channels, and one number that is in no span.
        let spans = [
            Span { length: 1, ..Span::default() },
            Span { start: 1, length: 12, taps: 2, channels: 3, ..Span::default() },
        ];
        let host: Vec<f32> = (0..14).map(|x| x as f32).collect();
        let device = relayout(&spans, &host, true);
        assert_eq!(device, [0., 1., 3., 5., 2., 4., 6., 7., 9., 11., 8., 10., 12., 13.]);
        assert_eq!(relayout(&spans, &device, false), host);
    }
}
