//! The vocabulary of iSCSI text: meaningful keys and values, which the fuzzer would hardly guess.

use std::sync::LazyLock;

use iscsi::params::{DigestPolicy, Params};
use iscsi_test::{INITIATOR, TARGET};

use crate::Source;

pub(crate) static KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let words = "InitiatorName TargetName SessionType AuthMethod CHAP_A CHAP_I CHAP_C CHAP_N CHAP_R HeaderDigest \
        DataDigest MaxRecvDataSegmentLength MaxBurstLength FirstBurstLength InitialR2T ImmediateData \
        MaxOutstandingR2T MaxConnections DefaultTime2Wait DefaultTime2Retain DataPDUInOrder DataSequenceInOrder \
        ErrorRecoveryLevel iSCSIProtocolLevel TaskReporting InitiatorAlias TargetAlias TargetAddress \
        TargetPortalGroupTag SendTargets IFMarker OFMarkInt X-com.example.key X#NodeArchitecture";
    words.split(' ').collect()
});

/// The second of two spaces ends an empty value.
pub(crate) static VALUES: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let words = "Normal Discovery None CHAP CHAP,None None,CHAP KRB5 5 8,7,6,5 CRC32C CRC32C,None Yes No 0 1 2 512 8192 \
        65536 262144 16777215 16777216 0x200 18446744073709551616 Reject Irrelevant NotUnderstood All  user \
        [::1]:3260,1 host.example:3260 0b 0x 1~2 eui.02004567A425678D RFC3720,FastAbort";
    [INITIATOR, TARGET].into_iter().chain(words.split(' ')).collect()
});

/// A value: a word, a number, or arbitrary bytes, which may contain zero bytes.
pub(crate) fn value(source: &mut Source<'_>) -> Vec<u8> {
    match source.byte() {
        0..=159 => source.pick(&VALUES).as_bytes().to_vec(),
        160..=191 => source.number().to_string().into_bytes(),
        192..=223 => iscsi::text::binary(source.some(40)).into_bytes(),
        224..=247 => source.some(24).to_vec(),
        248.. => vec![source.byte(); source.number().min(9000) as usize],
    }
}

/// Appends `key=value` and, nearly always, a zero byte.
pub(crate) fn pair(source: &mut Source<'_>, text: &mut Vec<u8>) {
    let key = if source.rarely(16) { source.some(70) } else { source.pick(&KEYS).as_bytes() };
    text.extend_from_slice(key);
    if !source.rarely(32) {
        text.push(b'=');
    }
    text.extend(value(source));
    if !source.rarely(32) {
        text.push(0);
    }
}

/// Valid parameters of one side. Zero bytes give small sizes and no digests.
pub(crate) fn params(source: &mut Source<'_>) -> Params {
    let sizes = [512, 513, 1024, 4096, 8192, 16_383, 65_536, 262_144, (1 << 24) - 1];
    let digest = [DigestPolicy::Off, DigestPolicy::Allow, DigestPolicy::Prefer, DigestPolicy::Require];
    let max_burst_length = source.pick(&sizes);
    let params = Params {
        header_digest: source.pick(&digest),
        data_digest: source.pick(&digest),
        initial_r2t: source.flag(),
        immediate_data: source.flag(),
        max_recv_data_segment_length: source.pick(&sizes),
        max_burst_length,
        first_burst_length: source.pick(&sizes).min(max_burst_length),
        max_outstanding_r2t: source.pick(&[1, 2, 3, 16, 65_535]),
        protocol_level: source.pick(&[1, 0, 2, 31]),
        ..Params::default()
    };
    params.validate().expect("permitted");
    params
}
