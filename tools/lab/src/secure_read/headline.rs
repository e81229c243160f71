//! The figures that answer the paper's question.

use serde_json::{Map, Value, json};

use super::Measured;
use super::cipher::Cipher;
use super::plan::{BLOCK_OF_PLOTS, PACKET_BYTES};
use super::shape::{How, Over, Protection, UNIT_BYTES};
use super::volumes::Volume;
use crate::fields;
use crate::stats::rounded;

/// By the names of ciphers, or of volumes.
type ByCipher = Vec<(&'static str, f64)>;

/// The available figures: without the rows of a figure it is omitted.
#[derive(Debug, Default)]
pub(super) struct Headline {
    /// Sockets, depth 1: rate with sealing ahead divided by the rate of the ideal; the minimum over blocks from 32 KiB.
    ahead_of_ideal: ByCipher,
    /// The same ratio of median cycles, which other load of the machine affects less than rates; the minimum.
    ahead_of_ideal_by_cycle: ByCipher,
    /// Rate with sealing ahead divided by the rate without overlap; the maximum.
    ahead_of_no_overlap: ByCipher,
    /// Share of the target's sealing time during which its socket has unacknowledged data; at 32 KiB.
    cipher_hidden_share: ByCipher,
    /// Rate with sealing ahead divided by the rate of sealing by packets; sockets at 32 KiB.
    ahead_of_per_packet: ByCipher,
    /// iSCSI, depth 1: rate of a volume divided by the rate of the ideal of AES-256-GCM; the minimum over blocks from 32 KiB.
    volumes_of_ideal: ByCipher,
    /// Rate of AES-256-GCM divided by that of TLS with the same cipher, for sockets with sealing ahead and for iSCSI;
    /// at the largest block.
    of_tls: [Option<f64>; 2],
}

struct Rates<'a>(&'a [Measured]);

impl Rates<'_> {
    fn find(&self, over: Over, block: u32, protection: Protection) -> Option<&Measured> {
        self.0.iter().find(|measured| {
            let reading = measured.row.reading;
            measured.row.over == over
                && (reading.block, reading.depth, reading.protection) == (block, 1, protection)
        })
    }

    fn rate(&self, over: Over, block: u32, protection: Protection) -> Option<f64> {
        Some(self.find(over, block, protection)?.rate().median).filter(|rate| *rate > 0.0)
    }

    /// Blocks per second if each took the median time.
    fn pace(&self, block: u32, protection: Protection) -> Option<f64> {
        let cycle_us = self.find(Over::Sockets, block, protection)?.cycle_us().median;
        Some(1e6 / cycle_us).filter(|pace| pace.is_finite())
    }

    /// Ratios of one figure of two protections, for each block from 32 KiB.
    fn ratios(
        &self,
        figure: impl Fn(u32, Protection) -> Option<f64>,
        one: Protection,
        other: Protection,
    ) -> Vec<f64> {
        let mut blocks: Vec<u32> = self.0.iter().map(|measured| measured.row.reading.block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let ratio = |block: u32| Some(figure(block, one)? / figure(block, other)?);
        blocks.into_iter().filter(|block| *block >= BLOCK_OF_PLOTS).filter_map(ratio).collect()
    }
}

impl Headline {
    pub(super) fn of(table: &[Measured]) -> Self {
        let rates = Rates(table);
        let sealed = |cipher, how| Protection::Sealed { cipher, unit: UNIT_BYTES, how };
        let mut headline = Self::default();
        for cipher in Cipher::ALL {
            let [stored, ahead, late] = [How::Stored, How::Ahead, How::Late].map(|how| sealed(cipher, how));
            let socket_rate = |block, protection| rates.rate(Over::Sockets, block, protection);
            let pace = |block, protection| rates.pace(block, protection);
            let add = |figures: &mut ByCipher, figure: Option<f64>| {
                figures.extend(figure.map(|figure| (cipher.name(), rounded(figure))));
            };
            let by_cycle = rates.ratios(pace, ahead, stored).into_iter().reduce(f64::min);
            add(&mut headline.ahead_of_ideal_by_cycle, by_cycle);
            let of_ideal = rates.ratios(socket_rate, ahead, stored).into_iter().reduce(f64::min);
            add(&mut headline.ahead_of_ideal, of_ideal);
            let of_no_overlap = rates.ratios(socket_rate, ahead, late).into_iter().reduce(f64::max);
            add(&mut headline.ahead_of_no_overlap, of_no_overlap);
            let packets = Protection::Sealed { cipher, unit: PACKET_BYTES, how: How::Packet };
            let rate = |protection| socket_rate(BLOCK_OF_PLOTS, protection);
            add(&mut headline.ahead_of_per_packet, rate(ahead).zip(rate(packets)).map(|(a, b)| a / b));
            let measured = rates.find(Over::Sockets, BLOCK_OF_PLOTS, ahead);
            add(&mut headline.cipher_hidden_share, measured.and_then(Measured::hidden_share));
        }
        let stored = sealed(Cipher::Aes256Gcm, How::Stored);
        let iscsi_rate = |block, protection| rates.rate(Over::Iscsi, block, protection);
        for volume in Volume::ALL {
            let ratios = rates.ratios(iscsi_rate, Protection::Volume(volume), stored);
            let least = ratios.into_iter().reduce(f64::min);
            headline.volumes_of_ideal.extend(least.map(|least| (volume.name(), rounded(least))));
        }
        let ahead = sealed(Cipher::Aes256Gcm, How::Ahead);
        let greatest = table.iter().map(|measured| measured.row.reading.block).max().unwrap_or(0);
        let of_tls = |over, ours| {
            Some(rounded(rates.rate(over, greatest, ours)? / rates.rate(over, greatest, Protection::Tls)?))
        };
        headline.of_tls = [of_tls(Over::Sockets, ahead), of_tls(Over::Iscsi, ahead)];
        headline
    }

    pub(super) fn object(&self) -> Map<String, Value> {
        let by_cipher = |figures: &ByCipher| -> Value {
            let object: Map<_, _> =
                figures.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            Value::Object(object)
        };
        fields(json!({
            "ahead_of_ideal": by_cipher(&self.ahead_of_ideal),
            "ahead_of_ideal_by_cycle": by_cipher(&self.ahead_of_ideal_by_cycle),
            "ahead_of_no_overlap": by_cipher(&self.ahead_of_no_overlap),
            "cipher_hidden_share": by_cipher(&self.cipher_hidden_share),
            "ahead_of_per_packet": by_cipher(&self.ahead_of_per_packet),
            "volumes_of_ideal": by_cipher(&self.volumes_of_ideal),
            "sockets_of_tls": self.of_tls[0],
            "iscsi_of_tls": self.of_tls[1],
        }))
    }

    pub(super) fn text(&self) -> String {
        let percent = |figures: &ByCipher| {
            let words = figures.iter().map(|(name, value)| format!("{name} {:.0} %", value * 100.0));
            words.collect::<Vec<_>>().join(", ")
        };
        let mut text = String::new();
        let mut add = |what: &str, figures: &ByCipher| {
            if !figures.is_empty() {
                text += &format!("{what}: {}.\n", percent(figures));
            }
        };
        add("Sealed ahead, by the ideal (sockets, one at a time, least from 32 KiB)", &self.ahead_of_ideal);
        add("The same by median cycles", &self.ahead_of_ideal_by_cycle);
        add("Sealed ahead, by no overlap (the greatest)", &self.ahead_of_no_overlap);
        add("Sealed ahead, by packets (sockets, one at a time, 32 KiB)", &self.ahead_of_per_packet);
        add(
            "Volumes, by the ideal of AES-256-GCM (iSCSI, one at a time, least from 32 KiB)",
            &self.volumes_of_ideal,
        );
        add("cipher_hidden_share (sealing while the socket waits, 32 KiB)", &self.cipher_hidden_share);
        text
    }
}
