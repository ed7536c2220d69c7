//! The order of weights: the GPU stores the kernels of a convolution as out × taps × in, the host as out × in × taps.

use super::compile::Span;
use rayon::prelude::*;

/// Converts a vector from the order of the host to that of the GPU, or back.
pub(super) fn relayout(spans: &[Span], vector: &[f32], to_device: bool) -> Vec<f32> {
    let mut converted = vector.to_vec();
    relayout_in_place(spans, &mut converted, to_device);
    converted
}

/// The same in place. Checkpoints convert all vectors of all workers, so all cores take part.
pub(super) fn relayout_in_place(spans: &[Span], vector: &mut [f32], to_device: bool) {
    for span in spans.iter().filter(|span| span.taps > 1) {
        let (start, taps, channels) = (span.start as usize, span.taps as usize, span.channels as usize);
        let kernels =
            vector[start..start + span.length as usize].par_chunks_exact_mut(taps * channels).with_min_len(8);
        kernels.for_each_init(Vec::new, |from, to| {
            from.clear();
            from.extend_from_slice(to);
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
        let mut again = host;
        relayout_in_place(&spans, &mut again, true);
        assert_eq!(again, device);
    }
}
