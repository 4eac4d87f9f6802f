use super::*;

fn size(width: u32, height: u32) -> Size {
    Size { width, height }
}

fn resized(from: Size, to: Size, source: &[u8]) -> Vec<u8> {
    let width = from.width as usize * 3;
    let mut result = Vec::new();
    let out = |row: &[u8]| {
        result.extend_from_slice(row);
        Ok(())
    };
    resize(from, to, |y, line| line.copy_from_slice(&source[y as usize * width..][..width]), out)
        .expect("memory");
    result
}

#[test]
fn resizing_to_the_same_size_changes_nothing() {
    let source: Vec<u8> = (0..7 * 5 * 3).map(|at| (at * 37 % 256) as u8).collect();
    assert_eq!(resized(size(7, 5), size(7, 5), &source), source);
}

#[test]
fn one_colour_stays_the_same_and_each_row_is_read_once_in_order() {
    for (from, to) in [
        (size(1, 1), size(64, 32)),
        (size(200, 3), size(32, 32)),
        (size(3, 500), size(64, 32)),
        (size(33, 31), size(32, 32)),
    ] {
        let source: Vec<u8> = [9u8, 200, 255].repeat((from.width * from.height) as usize);
        assert_eq!(
            resized(from, to, &source),
            [9u8, 200, 255].repeat((to.width * to.height) as usize),
            "{from:?} {to:?}"
        );
        let mut next = 0;
        let row = |y: u32, _: &mut [u8]| {
            assert_eq!(y, next, "each once");
            next += 1;
        };
        resize(from, to, row, |_| Ok(())).expect("memory");
        assert_eq!(next, from.height, "all of them");
    }
}

#[test]
fn an_error_of_the_writer_ends_the_resizing() {
    let full = |_: &[u8]| Err(io::ErrorKind::StorageFull.into());
    assert_eq!(
        resize(size(4, 4), size(32, 32), |_, _| {}, full).expect_err("full").kind(),
        io::ErrorKind::StorageFull
    );
}

#[test]
fn sides_that_differ_too_much_are_refused() {
    let sizes = Sizes {
        factor: 32,
        min_pixels: 1024,
        max_pixels: 1 << 20,
        frames: 1,
        small: SmallSides::AsTheyAre,
    };
    assert!(sizes.of(size(200, 1)).is_ok() && sizes.of(size(1, 200)).is_ok());
    let error = sizes.of(size(201, 1)).expect_err("a line").to_string();
    assert!(error.contains("200 times") && error.contains("201 x 1"), "{error}");
}

#[test]
fn fewer_pixels_at_most_change_only_sizes_that_have_more() {
    let sizes = Sizes {
        factor: 32,
        min_pixels: 65_536,
        max_pixels: 16_777_216,
        frames: 1,
        small: SmallSides::AsTheyAre,
    };
    let few = sizes.at_most(512 * 512);
    assert_eq!(few.of(size(4000, 2000)), Ok(size(704, 352)));
    assert_eq!(few.of(size(512, 512)), Ok(size(512, 512)));
    for small in [size(100, 60), size(400, 300)] {
        assert_eq!(few.of(small), sizes.of(small));
    }
    assert_eq!(sizes.at_most(1 << 30), sizes);
    // A model that reads more at least reads as many as it may at most.
    let large = Sizes { min_pixels: 1 << 20, ..sizes }.at_most(512 * 512);
    assert_eq!((large.min_pixels, large.max_pixels), (512 * 512, 512 * 512));
    assert_eq!(large.of(size(64, 64)), Ok(size(512, 512)));
}
