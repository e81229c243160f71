//! Tables of extents, and random chunks against a model that examines every byte.

use super::*;
use crate::scripted::Random;

const K: usize = 1024;
const UNIT: usize = 4 * K;

/// Bytes from lengths and letters, as in `4Kz 60K+5d`: `d` and `e` are two kinds of data, `z` is zero.
fn bytes(stretches: &str) -> Vec<u8> {
    let number = |text: &str| match text.strip_suffix('K') {
        Some(kib) => kib.parse::<usize>().unwrap() * K,
        None => text.parse().unwrap(),
    };
    let stretch = |word: &str| {
        let (length, letter) = word.split_at(word.len() - 1);
        let value = if letter == "z" { 0 } else { letter.as_bytes()[0] };
        vec![value; length.split('+').map(number).sum()]
    };
    stretches.split(' ').flat_map(stretch).collect()
}

/// The length of each extent, and whether it is zero (`z`) or written (`w`), with the gaps before extents (`-`).
fn told(extents: &[WriteExtent]) -> String {
    let length = |bytes: usize| match (bytes / K, bytes % K) {
        (0, rest) => rest.to_string(),
        (kib, 0) => format!("{kib}K"),
        (kib, rest) => format!("{kib}K+{rest}"),
    };
    let (mut words, mut at) = (Vec::new(), 0);
    for WriteExtent { range, zero } in extents {
        let (start, end) = (range.start as usize, range.end as usize);
        if at != start {
            words.push(length(start - at) + "-");
        }
        words.push(length(end - start) + if *zero { "z" } else { "w" });
        at = end;
    }
    words.join(" ")
}

#[test]
fn zeroes_inside_of_data() {
    let rows: [(&str, &str, &str); 15] = [
        ("data", "1024Kd", "1024Kw"),
        ("a short chunk of data", "5d", "5w"),
        ("zeroes", "1024Kz", "1024Kz"),
        ("a short chunk of zeroes", "5z", "5z"),
        ("a last byte", "1023K+1023z 1d", "1020Kz 4Kw"),
        ("a first byte", "1d 1023K+1023z", "4Kw 1020Kz"),
        ("64 KiB where 64 KiB begin", "64Kd 64Kz 64Kd", "64Kw 64Kz 64Kw"),
        ("64 KiB elsewhere", "100Kd 64Kz 4Kd", "100Kw 64Kz 4Kw"),
        ("60 KiB", "4Kd 60Kz 64Kd", "128Kw"),
        ("60 KiB at the start", "60Kz 4Kd", "64Kw"),
        ("60 KiB at the end", "68Kd 60Kz", "128Kw"),
        ("67 KiB in 60 KiB of whole units", "1d 67Kz 64Kd", "131K+1w"),
        ("64 KiB to an odd end", "4Kd 64K+5z", "4Kw 64K+5z"),
        ("60 KiB and a tail", "8Kd 60K+5z", "68K+5w"),
        ("many", "64Kz 4Kd 124Kz 4Kd 60Kz 4Kd 76Kz", "64Kz 4Kw 124Kz 68Kw 76Kz"),
    ];
    for (name, new, expected) in rows {
        let new = bytes(new);
        assert_eq!(told(&extents(&new, None, UNIT, true)), expected, "{name}");
        let whole = WriteExtent { range: 0..new.len() as u32, zero: false };
        assert_eq!(extents(&new, None, UNIT, false), [whole], "{name}, not sparse");
    }
}

#[test]
fn what_differs() {
    let rows: [(&str, &str, &str, &str); 12] = [
        ("nothing", "1024Kd", "1024Kd", ""),
        ("nothing, zero", "1024Kz", "1024Kz", ""),
        ("all", "1024Kd", "1024Ke", "1024Kw"),
        ("a byte", "128Kd", "70Kd 1e 57K+1023d", "68K- 4Kw"),
        ("both edges, far apart", "1024K+7d", "1e 1024K+5d 1e", "4Kw 1020K- 7w"),
        ("a gap of 16 KiB", "1024Kd", "4Ke 16Kd 4Ke 1000Kd", "24Kw"),
        ("a gap of 20 KiB", "1024Kd", "4Ke 20Kd 4Ke 996Kd", "4Kw 20K- 4Kw"),
        ("now zero", "128Kz", "128Kd", "128Kz"),
        ("a byte, now zero", "128Kz", "9Kz 1d 118K+1023z", "128Kz"),
        ("zeroes that were zero stay", "64Kd 64Kz 64Kd", "60Kd 4Ke 64Kz 4Ke 60Kd", "60K- 4Kw 64K- 4Kw"),
        ("zeroes between what differs", "64Kd 64Kz 64Kd", "60Kd 4Ke 64Kd 4Ke 60Kd", "60K- 4Kw 64Kz 4Kw"),
        ("short zeroes are data", "4Kd 60Kz 64Kd", "60Kd 4Ke 64Kd", "4K- 60Kw"),
    ];
    for (name, new, old, expected) in rows {
        let (new, old) = (bytes(new), bytes(old));
        assert_eq!(told(&extents(&new, Some(&old), UNIT, true)), expected, "{name}");
    }
    let (new, old) = (bytes("128Kz"), bytes("9Kz 1d 118K+1023z"));
    assert_eq!(told(&extents(&new, Some(&old), UNIT, false)), "8K- 4Kw", "not sparse");
}

#[test]
fn a_long_chunk_is_not_written_in_more_requests_than_the_bound() {
    let new = vec![1; CHUNK_BYTES_MAX as usize];
    let mut old = new.clone();
    old.iter_mut().step_by(24 * K).for_each(|byte| *byte = 2);
    assert_eq!(extents(&new, Some(&old), UNIT, true).len(), 1, "gaps of 20 KiB are closed");
    old.clone_from(&new);
    old.iter_mut().step_by(72 * K).for_each(|byte| *byte = 2);
    let written = extents(&new, Some(&old), UNIT, true);
    assert!(written.len() <= WRITES_MAX && written.len() > WRITES_MAX / 2, "{}", written.len());
}

#[test]
fn without_zeroes_by_name_what_touches_is_one_write() {
    let new = bytes("64Kd 64Kz 128Kd 8Kz");
    let old = bytes("64Ke 64Kd 64Ke 60Kd 12Kd");
    let found = extents(&new, Some(&old), UNIT, true);
    assert_eq!(told(&found), "64Kw 64Kz 64Kw 64K- 8Kw");
    assert_eq!(told(&without_zeroes(found)), "192Kw 64K- 8Kw");
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
        for WriteExtent { range, zero } in &found {
            let (start, end) = (range.start as usize, range.end as usize);
            assert!(start < end && start.is_multiple_of(unit), "seed {seed}: {start}..{end}");
            assert!(end == length || end < length && end.is_multiple_of(unit), "seed {seed}: {start}..{end}");
            let follows = last.is_none_or(|(at, is)| start > at || start == at && zero != is);
            assert!(follows, "seed {seed}: {found:?}");
            letters[start / unit..end.div_ceil(unit)].fill(if *zero { 'z' } else { 'w' });
            last = Some((end, zero));
        }
        let shown = |letters: Vec<char>| letters.into_iter().collect::<String>();
        let wanted = shown(model(&new, old, unit, sparse));
        assert_eq!(shown(letters), wanted, "seed {seed}, unit {unit}, {length} bytes");
    }
}
