//! The images that a convolution reads: they are there, or each is made shortly before it is read, while the convolution runs.

use super::simd::F32x16;
use rayon::iter::Either;
use rayon::prelude::*;

/// The images that a convolution reads.
pub(crate) enum Images<'a> {
    /// They are there.
    Ready(&'a [F32x16]),
    /// Each is made shortly before it is read.
    Lazy(&'a mut [F32x16], Make<'a>),
    /// The same, and nothing else reads them: one may be overwritten by the next.
    Transient(&'a mut [F32x16], Make<'a>),
}

/// Makes an image: gets its number, its memory, and the memory for the convolution's result of this image before that is written.
pub(crate) type Make<'a> = &'a (dyn Fn(usize, &mut [F32x16], &[F32x16]) + Sync);

impl<'a> Images<'a> {
    /// Makes all images. `y` is the memory for the results; image sizes are those of the images and of the results.
    pub(crate) fn all(self, [from, to]: [usize; 2], y: &[F32x16]) -> &'a [F32x16] {
        match self {
            Images::Ready(images) => images,
            Images::Lazy(images, make) | Images::Transient(images, make) => {
                let results = |image: usize| y.get(image * to..(image + 1) * to).unwrap_or(&[]);
                let each = images.par_chunks_exact_mut(from).enumerate();
                each.for_each(|(image, x)| make(image, x, results(image)));
                images
            }
        }
    }

    /// Makes these images, of which the first has the number `first`, on this thread.
    pub(crate) fn here(self, first: usize, [from, to]: [usize; 2], y: &[F32x16]) -> &'a [F32x16] {
        match self {
            Images::Ready(images) => images,
            Images::Lazy(images, make) | Images::Transient(images, make) => {
                let pairs = images.chunks_exact_mut(from).zip(y.chunks_exact(to)).enumerate();
                pairs.for_each(|(image, (x, y))| make(first + image, x, y));
                images
            }
        }
    }

    pub(crate) fn par_chunks(self, len: usize) -> impl IndexedParallelIterator<Item = Images<'a>> {
        let (images, of, make): (_, fn(_, _) -> _, _) = match self {
            Images::Ready(images) => return Either::Left(images.par_chunks(len).map(Images::Ready)),
            Images::Lazy(images, make) => (images, Images::Lazy, make),
            Images::Transient(images, make) => (images, Images::Transient, make),
        };
        Either::Right(images.par_chunks_mut(len).map(move |images| of(images, make)))
    }

    /// Some of the images. Transient ones are in the memory of the first.
    pub(crate) fn part(&mut self, from: usize, len: usize) -> Images<'_> {
        match self {
            Images::Ready(images) => Images::Ready(&images[from..from + len]),
            Images::Lazy(images, make) => Images::Lazy(&mut images[from..from + len], make),
            Images::Transient(images, make) => Images::Transient(&mut images[..len], make),
        }
    }

    pub(crate) fn reborrow(&mut self) -> Images<'_> {
        match self {
            Images::Ready(images) => Images::Ready(images),
            Images::Lazy(images, make) => Images::Lazy(images, make),
            Images::Transient(images, make) => Images::Transient(images, make),
        }
    }

    /// The memory of the images. All of them are in it, unless they are transient.
    pub(crate) fn memory(self) -> &'a [F32x16] {
        match self {
            Images::Ready(images) => images,
            Images::Lazy(images, _) | Images::Transient(images, _) => images,
        }
    }
}
