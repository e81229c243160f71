//! Tables of extents, and random chunks against a model that examines every byte.

use super::*;
use crate::scripted::Random;

const K: usize = 1024;
const UNIT: usize = 4 * K;

/// Bytes from a list of lengths and letters: `d` and `e` are two kinds of data, `z` is zero.
fn bytes(stretches: &[(usize, char)]) -> Vec<u8> {
    let value = |letter| if letter == 'z' { 0 } else { letter as u8 };
    stretches.iter().flat_map(|(length, letter)| std::iter::repeat_n(value(*letter), *length)).collect()
}

/// Begin and end of each extent, and whether it is zero.
fn told(extents: &[WriteExtent]) -> Vec<(usize, usize, char)> {
    let letter = |extent: &WriteExtent| if extent.zero { 'z' } else { 'w' };
    extents
        .iter()
        .map(|extent| (extent.range.start as usize, extent.range.end as usize, letter(extent)))
        .collect()
}

#[test]
fn zeroes_inside_of_data() {
    type Row<'a> = (&'a str, &'a [(usize, char)], &'a [(usize, usize, char)]);
    let rows: &[Row] = &[
        ("data", &[(1024 * K, 'd')], &[(0, 1024 * K, 'w')]),
        ("a short chunk of data", &[(5, 'd')], &[(0, 5, 'w')]),
        ("zeroes", &[(1024 * K, 'z')], &[(0, 1024 * K, 'z')]),
        ("a short chunk of zeroes", &[(5, 'z')], &[(0, 5, 'z')]),
        ("a last byte", &[(1024 * K - 1, 'z'), (1, 'd')], &[(0, 1020 * K, 'z'), (1020 * K, 1024 * K, 'w')]),
        ("a first byte", &[(1, 'd'), (1024 * K - 1, 'z')], &[(0, 4 * K, 'w'), (4 * K, 1024 * K, 'z')]),
        (
            "64 KiB where 64 KiB begin",
            &[(64 * K, 'd'), (64 * K, 'z'), (64 * K, 'd')],
            &[(0, 64 * K, 'w'), (64 * K, 128 * K, 'z'), (128 * K, 192 * K, 'w')],
        ),
        (
            "64 KiB elsewhere",
            &[(100 * K, 'd'), (64 * K, 'z'), (4 * K, 'd')],
            &[(0, 100 * K, 'w'), (100 * K, 164 * K, 'z'), (164 * K, 168 * K, 'w')],
        ),
        ("60 KiB", &[(4 * K, 'd'), (60 * K, 'z'), (64 * K, 'd')], &[(0, 128 * K, 'w')]),
        ("60 KiB at the start", &[(60 * K, 'z'), (4 * K, 'd')], &[(0, 64 * K, 'w')]),
        ("60 KiB at the end", &[(68 * K, 'd'), (60 * K, 'z')], &[(0, 128 * K, 'w')]),
        (
            "67 KiB in 60 KiB of whole units",
            &[(1, 'd'), (67 * K, 'z'), (64 * K, 'd')],
            &[(0, 131 * K + 1, 'w')],
        ),
        (
            "64 KiB to an odd end",
            &[(4 * K, 'd'), (64 * K + 5, 'z')],
            &[(0, 4 * K, 'w'), (4 * K, 68 * K + 5, 'z')],
        ),
        ("60 KiB and a tail", &[(8 * K, 'd'), (60 * K + 5, 'z')], &[(0, 68 * K + 5, 'w')]),
        (
            "many",
            &[
                (64 * K, 'z'),
                (4 * K, 'd'),
                (124 * K, 'z'),
                (4 * K, 'd'),
                (60 * K, 'z'),
                (4 * K, 'd'),
                (76 * K, 'z'),
            ],
            &[
                (0, 64 * K, 'z'),
                (64 * K, 68 * K, 'w'),
                (68 * K, 192 * K, 'z'),
                (192 * K, 260 * K, 'w'),
                (260 * K, 336 * K, 'z'),
            ],
        ),
    ];
    for (name, new, expected) in rows {
        let new = bytes(new);
        assert_eq!(told(&extents(&new, None, UNIT, true)), *expected, "{name}");
        assert_eq!(told(&extents(&new, None, UNIT, false)), [(0, new.len(), 'w')], "{name}, not sparse");
    }
}

#[test]
fn what_differs() {
    type Stretches<'a> = &'a [(usize, char)];
    type Row<'a> = (&'a str, Stretches<'a>, Stretches<'a>, &'a [(usize, usize, char)]);
    let rows: &[Row] = &[
        ("nothing", &[(1024 * K, 'd')], &[(1024 * K, 'd')], &[]),
        ("nothing, zero", &[(1024 * K, 'z')], &[(1024 * K, 'z')], &[]),
        ("all", &[(1024 * K, 'd')], &[(1024 * K, 'e')], &[(0, 1024 * K, 'w')]),
        (
            "a byte",
            &[(128 * K, 'd')],
            &[(70 * K, 'd'), (1, 'e'), (58 * K - 1, 'd')],
            &[(68 * K, 72 * K, 'w')],
        ),
        (
            "both edges, far apart",
            &[(1024 * K + 7, 'd')],
            &[(1, 'e'), (1024 * K + 5, 'd'), (1, 'e')],
            &[(0, 4 * K, 'w'), (1024 * K, 1024 * K + 7, 'w')],
        ),
        (
            "a gap of 16 KiB",
            &[(1024 * K, 'd')],
            &[(4 * K, 'e'), (16 * K, 'd'), (4 * K, 'e'), (1000 * K, 'd')],
            &[(0, 24 * K, 'w')],
        ),
        (
            "a gap of 20 KiB",
            &[(1024 * K, 'd')],
            &[(4 * K, 'e'), (20 * K, 'd'), (4 * K, 'e'), (996 * K, 'd')],
            &[(0, 4 * K, 'w'), (24 * K, 28 * K, 'w')],
        ),
        ("now zero", &[(128 * K, 'z')], &[(128 * K, 'd')], &[(0, 128 * K, 'z')]),
        (
            "a byte, now zero",
            &[(128 * K, 'z')],
            &[(9 * K, 'z'), (1, 'd'), (119 * K - 1, 'z')],
            &[(0, 128 * K, 'z')],
        ),
        (
            "zeroes that were zero stay",
            &[(64 * K, 'd'), (64 * K, 'z'), (64 * K, 'd')],
            &[(60 * K, 'd'), (4 * K, 'e'), (64 * K, 'z'), (4 * K, 'e'), (60 * K, 'd')],
            &[(60 * K, 64 * K, 'w'), (128 * K, 132 * K, 'w')],
        ),
        (
            "zeroes between what differs",
            &[(64 * K, 'd'), (64 * K, 'z'), (64 * K, 'd')],
            &[(60 * K, 'd'), (4 * K, 'e'), (64 * K, 'd'), (4 * K, 'e'), (60 * K, 'd')],
            &[(60 * K, 64 * K, 'w'), (64 * K, 128 * K, 'z'), (128 * K, 132 * K, 'w')],
        ),
        (
            "short zeroes are data",
            &[(4 * K, 'd'), (60 * K, 'z'), (64 * K, 'd')],
            &[(60 * K, 'd'), (4 * K, 'e'), (64 * K, 'd')],
            &[(4 * K, 64 * K, 'w')],
        ),
    ];
    for (name, new, old, expected) in rows {
        let (new, old) = (bytes(new), bytes(old));
        assert_eq!(told(&extents(&new, Some(&old), UNIT, true)), *expected, "{name}");
    }
    let (new, old) = (bytes(&[(128 * K, 'z')]), bytes(&[(9 * K, 'z'), (1, 'd'), (119 * K - 1, 'z')]));
    assert_eq!(told(&extents(&new, Some(&old), UNIT, false)), [(8 * K, 12 * K, 'w')], "not sparse");
}

#[test]
fn a_long_chunk_is_not_written_in_more_requests_than_the_bound() {
    let new = vec![1; CHUNK_BYTES_MAX as usize];
    let mut old = new.clone();
    old.iter_mut().step_by(24 * K).for_each(|byte| *byte = 2);
    assert_eq!(told(&extents(&new, Some(&old), UNIT, true)).len(), 1, "gaps of 20 KiB are closed");
    old.clone_from(&new);
    old.iter_mut().step_by(72 * K).for_each(|byte| *byte = 2);
    let written = extents(&new, Some(&old), UNIT, true);
    assert!(written.len() <= WRITES_MAX && written.len() > WRITES_MAX / 2, "{}", written.len());
}

#[test]
fn without_zeroes_by_name_what_touches_is_one_write() {
    let new = bytes(&[(64 * K, 'd'), (64 * K, 'z'), (128 * K, 'd'), (8 * K, 'z')]);
    let old = bytes(&[(64 * K, 'e'), (64 * K, 'd'), (64 * K, 'e'), (60 * K, 'd'), (12 * K, 'd')]);
    let found = extents(&new, Some(&old), UNIT, true);
    assert_eq!(
        told(&found),
        [(0, 64 * K, 'w'), (64 * K, 128 * K, 'z'), (128 * K, 192 * K, 'w'), (256 * K, 264 * K, 'w')]
    );
    assert_eq!(told(&without_zeroes(found)), [(0, 192 * K, 'w'), (256 * K, 264 * K, 'w')]);
}

/// The treatment of each unit, from a look at every byte.
fn model(new: &[u8], old: Option<&[u8]>, unit: usize, sparse: bool) -> Vec<char> {
    let units: Vec<_> = (0..new.len()).step_by(unit).map(|at| at..(at + unit).min(new.len())).collect();
    let zero: Vec<_> = units.iter().map(|unit| new[unit.clone()].iter().all(|byte| *byte == 0)).collect();
    let differs = |range: Range<usize>| old.is_none_or(|old| new[range.clone()] != old[range]);
    let mut letters: Vec<_> =
        units.iter().map(|unit| if differs(unit.clone()) { 'w' } else { '-' }).collect();
    let bytes_of = |run: &Range<usize>| units[run.start].start..units[run.end - 1].end;
    let mut barriers = vec![0];
    let mut at = 0;
    while at < units.len() {
        let run = at..at + zero[at..].iter().take_while(|is_zero| **is_zero).count();
        if sparse && !run.is_empty() {
            let bytes = bytes_of(&run);
            if bytes.len() >= 64 * K || bytes.len() == new.len() {
                letters[run.clone()].fill(if differs(bytes) { 'z' } else { '-' });
                barriers.extend([run.start, run.end]);
            }
        }
        at = run.end.max(at + 1);
    }
    barriers.push(units.len());
    // Gaps between writes that contain no range of zeroes.
    for pair in barriers.windows(2) {
        let writes: Vec<_> = (pair[0]..pair[1]).filter(|unit| letters[*unit] == 'w').collect();
        for two in writes.windows(2) {
            if (two[1] - two[0] - 1) * unit <= (16 * K).max(new.len() / 256) {
                letters[two[0]..two[1]].fill('w');
            }
        }
    }
    letters
}

#[test]
fn any_chunk_is_cut_as_the_model_cuts_it() {
    for seed in 1..=600 {
        let mut random = Random::new(seed);
        let unit = [UNIT, UNIT, 3 * UNIT, 128 * K][random.below(4) as usize];
        let most = [9_000, 300_000, 1 << 20][random.below(3) as usize];
        let length = 1 + random.below(most) as usize;
        let (mut new, mut old) = (vec![0; length], vec![0; length]);
        let mut at = 0;
        while at < length {
            let long = if random.one_in(3) { 200 * K } else { 24 * K };
            let stretch = 1 + random.below(long as u64) as usize;
            let end =
                (at + if random.one_in(3) { stretch } else { stretch.next_multiple_of(UNIT) }).min(length);
            let (a, b) = [(0, 0), (0, 7), (7, 0), (7, 9), (7, 7), (7, 7)][random.below(6) as usize];
            new[at..end].fill(a);
            old[at..end].fill(b);
            // One significant byte at a random place.
            if random.one_in(3) {
                let place = [at, end - 1, (at + end) / 2][random.below(3) as usize];
                let image = if random.one_in(2) { &mut new } else { &mut old };
                image[place] ^= 1;
            }
            at = end;
        }
        let (sparse, old) = (!random.one_in(5), random.one_in(2).then_some(&old[..]));
        let found = extents(&new, old, unit, sparse);
        let mut letters = vec!['-'; length.div_ceil(unit)];
        let mut last = None;
        for (start, end, letter) in told(&found) {
            assert!(start < end && start.is_multiple_of(unit), "seed {seed}: {start}..{end}");
            assert!(end == length || end < length && end.is_multiple_of(unit), "seed {seed}: {start}..{end}");
            assert!(
                last.is_none_or(|(at, is)| start > at || start == at && letter != is),
                "seed {seed}: {found:?}"
            );
            letters[start / unit..end.div_ceil(unit)].fill(letter);
            last = Some((end, letter));
        }
        let wanted: String = model(&new, old, unit, sparse).into_iter().collect();
        assert_eq!(
            letters.into_iter().collect::<String>(),
            wanted,
            "seed {seed}, unit {unit}, {length} bytes"
        );
    }
}
