//! What `net up` is asked for.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::control::{Device, Wire};
use crate::nic::CLIENTS_MAX;

/// Addresses and gateways of one stack: tables of `inet` have fixed sizes.
pub const ADDRESSES_MAX: usize = 8;
pub const GATEWAYS_MAX: usize = 2;
/// Of the name of an interface: IFNAMSIZ without the zero byte at its end.
const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;
/// Longest delay of a wire, microseconds.
const DELAY_US_MAX: u64 = 10_000_000;

#[derive(Clone, Debug)]
pub struct Config {
    pub socket: PathBuf,
    pub nic: Nic,
    /// Each with the length of its prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    pub gateways: Vec<IpAddr>,
    pub mac: [u8; 6],
    /// Applications at a time.
    pub clients_max: u32,
}

impl Config {
    /// What cannot work, although each part of it is well formed.
    pub fn check(&self) -> Result<(), String> {
        let Self { addresses, gateways, .. } = self;
        for (number, &(address, length)) in addresses.iter().enumerate() {
            if addresses[..number].iter().any(|(other, _)| *other == address) {
                return Err(format!("{address} is given twice"));
            }
            if let Some(what) = reserved(address, address, length) {
                return Err(format!("{address}/{length} is {what}, not that of a station"));
            }
        }
        for &gateway in gateways {
            let is_same_family = |address: &IpAddr| address.is_ipv4() == gateway.is_ipv4();
            if !addresses.iter().any(|(address, _)| is_same_family(address)) {
                let family = if gateway.is_ipv4() { "IPv4" } else { "IPv6" };
                return Err(format!("gateway {gateway}: the stack has no {family} address to reach it from"));
            }
            if addresses.iter().any(|(address, _)| *address == gateway) {
                return Err(format!("gateway {gateway} is an address of the stack itself"));
            }
            // fe80::/64 is on the link of each interface with an IPv6 address.
            let is_local = matches!(gateway, IpAddr::V6(gateway) if gateway.is_unicast_link_local());
            let network = addresses.iter().find(|&&(address, length)| is_within(gateway, address, length));
            match network {
                None if is_local => {}
                None => {
                    let networks: Vec<String> = addresses
                        .iter()
                        .filter(|(address, _)| is_same_family(address))
                        .map(|(address, length)| format!("{address}/{length}"))
                        .collect();
                    let networks = networks.join(", ");
                    return Err(format!(
                        "gateway {gateway} is in no network of --address {networks}: no route leads to it"
                    ));
                }
                Some(&(address, length)) => {
                    if let Some(what) = reserved(gateway, address, length) {
                        return Err(format!(
                            "gateway {gateway} is {what} {address}/{length}, not that of a station"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// An address as a number, with its length in bits.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (address.to_bits().into(), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

/// The part of an address that a prefix of `length` leaves, and its greatest value.
fn host_part(address: IpAddr, length: u8) -> (u128, u128) {
    let (number, bits) = bits(address);
    let greatest = u128::MAX.checked_shr(u32::from(128 - bits) + u32::from(length)).unwrap_or(0);
    (number & greatest, greatest)
}

fn is_within(one: IpAddr, address: IpAddr, length: u8) -> bool {
    let (_, greatest) = host_part(address, length);
    bits(one).1 == bits(address).1 && bits(one).0 & !greatest == bits(address).0 & !greatest
}

/// What `one` is in the network of `address`, if no station may have it: RFC 1122 §3.2.1.3 (not with /31, RFC 3021),
/// RFC 4291 §2.6.1 (not with /127, RFC 6164).
fn reserved(one: IpAddr, address: IpAddr, length: u8) -> Option<&'static str> {
    let (host, greatest) = host_part(one, length);
    if greatest <= 1 || !is_within(one, address, length) {
        return None;
    }
    match one {
        IpAddr::V4(_) if host == 0 => Some("the address of the network"),
        IpAddr::V4(_) if host == greatest => Some("the broadcast address of the network"),
        IpAddr::V6(_) if host == 0 => Some("the anycast address of the routers of the network"),
        IpAddr::V4(_) | IpAddr::V6(_) => None,
    }
}

/// The network interface of a stack.
#[derive(Clone, Debug, PartialEq)]
pub enum Nic {
    /// A TAP interface of the host, which is made unless it is there.
    Tap(String),
    /// An interface of the host, through a packet socket.
    Packet(String),
    /// A UNIX socket that leads to the driver of another stack.
    Wire(PathBuf, Wire),
}

impl Nic {
    pub(super) fn device(&self) -> Device {
        match self {
            Self::Tap(_) => Device::Tap,
            Self::Packet(_) => Device::Packet,
            Self::Wire(_, settings) => Device::Wire(*settings),
        }
    }
}

/// As in "10.0.0.2/24 on tap0".
impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tap(name) | Self::Packet(name) => f.write_str(name),
            Self::Wire(path, _) => write!(f, "wire {}", path.display()),
        }
    }
}

/// `tap:NAME`, `packet:NAME` or `wire:PATH[,option=value...]`; a comma in a path is written twice.
impl FromStr for Nic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let forms = "write tap:NAME, packet:NAME or wire:PATH";
        let (kind, rest) = text.split_once(':').ok_or_else(|| format!("'{text}' has no kind; {forms}"))?;
        let mut parts = split(rest).into_iter();
        let name = parts.next().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| format!("'{text}' has no name; {forms}"))?;
        let nic = match kind {
            "tap" => Self::Tap(interface(name)?),
            "packet" if name == "lo" => {
                return Err("packet:lo: the loopback interface carries nothing to another station; \
                            write tap:NAME to reach this host"
                    .to_owned());
            }
            "packet" => Self::Packet(interface(name)?),
            "wire" => {
                let mut settings = Wire::default();
                for option in parts.by_ref() {
                    set(&mut settings, &option)?;
                }
                Self::Wire(name.into(), settings)
            }
            _ => return Err(format!("'{kind}' is no kind of interface; {forms}")),
        };
        match parts.next() {
            Some(option) => Err(format!("'{option}': only wire: has options")),
            None => Ok(nic),
        }
    }
}

/// A name that the kernel accepts (`dev_valid_name`).
fn interface(name: String) -> Result<String, String> {
    let is_odd = |c: char| c == '/' || c == ':' || c.is_whitespace() || c == '\0';
    if name.len() > NAME_BYTES_MAX || name.contains(is_odd) || name == "." || name == ".." {
        return Err(format!(
            "'{name}' is no name of an interface: it has 1 to {NAME_BYTES_MAX} bytes, without spaces, '/' and ':'"
        ));
    }
    Ok(name)
}

/// Parts between single commas; two commas are one within a part.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ',' && characters.next_if_eq(&',').is_none() {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts
}

fn set(wire: &mut Wire, option: &str) -> Result<(), String> {
    let known = "known are delay=50ms, rate=1Gbit, loss=1%, reorder=1%, duplicate=1%, seed=N";
    let (name, value) = option.split_once('=').ok_or_else(|| format!("'{option}' has no value; {known}"))?;
    let explain = |why: String| format!("{option}: {why}");
    match name {
        "delay" => {
            let us = scaled(value, &[("us", 1.0), ("ms", 1e3), ("s", 1e6)]).map_err(explain)?;
            if us > DELAY_US_MAX as f64 {
                return Err(explain("is more than 10s".to_owned()));
            }
            wire.delay_us = us.round() as u64;
        }
        "rate" => {
            let units = [("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)];
            let rate = scaled(value.strip_suffix("/s").unwrap_or(value), &units).map_err(explain)?;
            if !(1e3..=1e12).contains(&rate) {
                return Err(explain("write a rate from 1kbit to 1000Gbit".to_owned()));
            }
            wire.bits_per_s = rate.round() as u64;
        }
        "loss" => wire.loss = share(value).map_err(explain)?,
        "reorder" => wire.reordering = share(value).map_err(explain)?,
        "duplicate" => wire.duplication = share(value).map_err(explain)?,
        "seed" => {
            wire.seed =
                value.parse().map_err(|_| explain("write a whole number of at most 64 bits".to_owned()))?;
        }
        _ => return Err(format!("'{name}' is no option of a wire; {known}")),
    }
    Ok(())
}

/// A number with one of some units.
fn scaled(text: &str, units: &[(&str, f64)]) -> Result<f64, String> {
    let end = text.find(|character: char| character.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let number = number.ok_or_else(|| format!("'{text}' does not begin with a number"))?;
    if let Some((_, scale)) = units.iter().find(|(name, _)| *name == unit) {
        return Ok(number * scale);
    }
    let forms: Vec<String> = units.iter().map(|(unit, _)| format!("{number}{unit}")).collect();
    let what = if unit.is_empty() { "no unit" } else { "an unknown unit" };
    Err(format!("the number has {what}: write {}", forms.join(" or ")))
}

/// `1%`. Without the sign 0.5 might be meant as a half, or as half a percent.
fn share(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    let value = number.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
    let value = value.ok_or_else(|| "write a share such as 0.5%".to_owned())?;
    if number.len() == text.len() {
        let form = format!("write {text}%");
        return Err(if value > 0.0 && value <= 1.0 {
            format!("{form} (or {}%)", value * 100.0)
        } else {
            form
        });
    }
    if value > 100.0 { Err("is more than 100%".to_owned()) } else { Ok(value / 100.0) }
}

/// `10.0.0.2/24`.
pub fn parse_address(text: &str) -> Result<(IpAddr, u8), String> {
    let example = "write for example 10.0.0.2/24 or fd00::2/64";
    let (address, length) = text.split_once('/').ok_or(format!("'{text}' has no length; {example}"))?;
    let address: IpAddr = address.parse().map_err(|_| format!("'{text}' is not an address; {example}"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.parse().ok().filter(|length| *length <= most);
    let length = length.ok_or_else(|| format!("'{text}': the length is a number up to {most}; {example}"))?;
    let is_limited_broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    for (is_one, what) in [
        (address.is_loopback(), "a loopback address: it never leaves its host"),
        (address.is_multicast(), "a multicast address: it belongs to a group of stations"),
        (address.is_unspecified(), "the unspecified address"),
        (is_limited_broadcast, "the broadcast address"),
    ] {
        if is_one {
            return Err(format!("{address} is {what}; {example}"));
        }
    }
    Ok((address, length))
}

/// `02:00:00:00:00:01`.
pub fn parse_mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("'{text}' is not a MAC address; write for example 02:00:00:00:00:01");
    let mut mac = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2).ok_or_else(wrong)?;
        *byte = u8::from_str_radix(part, 16).map_err(|_| wrong())?;
    }
    if parts.next().is_some() {
        return Err(wrong());
    }
    if mac == [0; 6] {
        return Err(format!("{text} is no address of a station"));
    }
    if mac[0] & 1 == 1 {
        let unicast = show_mac([mac[0] & !1 | 2, mac[1], mac[2], mac[3], mac[4], mac[5]]);
        return Err(format!(
            "{text} is a multicast address (its first byte is odd); one of a station is {unicast}"
        ));
    }
    Ok(mac)
}

/// `02:00:00:00:00:01`.
pub fn show_mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// `--clients`.
pub fn parse_clients(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| (1..=CLIENTS_MAX as u32).contains(number));
    number.ok_or_else(|| format!("'{text}' is not a number from 1 to {CLIENTS_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_parsed() {
        let wire = |path: &str, settings| Ok(Nic::Wire(path.into(), settings));
        let all = Wire {
            delay_us: 25_500,
            bits_per_s: 100_000_000,
            loss: 0.01,
            reordering: 0.005,
            duplication: 1.0,
            seed: 7,
        };
        for (text, nic) in [
            ("tap:tap0", Ok(Nic::Tap("tap0".into()))),
            ("packet:eth0", Ok(Nic::Packet("eth0".into()))),
            ("wire:/run/w", wire("/run/w", Wire::default())),
            ("wire:a,,b:c", wire("a,b:c", Wire::default())),
            ("wire:w,delay=25.5ms,rate=0.1Gbit/s,loss=1%,reorder=0.5%,duplicate=100%,seed=7", wire("w", all)),
        ] {
            assert_eq!(text.parse(), nic, "{text}");
        }
        for (text, why) in [
            ("tap0", "write tap:NAME"),
            ("tap:", "has no name"),
            ("tap:t,delay=1ms", "only wire: has options"),
            ("bridge:b", "no kind of interface"),
            ("wire:w,delay", "has no value"),
            ("wire:w,delay=5", "delay=5: the number has no unit: write 5us or 5ms or 5s"),
            ("wire:w,delay=11s", "delay=11s: is more than 10s"),
            ("wire:w,delay=-1ms", "does not begin with a number"),
            ("wire:w,rate=1GB", "an unknown unit: write 1kbit or 1Mbit or 1Gbit"),
            ("wire:w,rate=0kbit", "a rate from 1kbit"),
            ("wire:w,loss=200%", "loss=200%: is more than 100%"),
            ("wire:w,loss=0.5", "loss=0.5: write 0.5% (or 50%)"),
            ("wire:w,reorder=5", "reorder=5: write 5%"),
            ("wire:w,duplicate=0.25", "duplicate=0.25: write 0.25% (or 25%)"),
            ("wire:w,loss=NaN%", "a share such as 0.5%"),
            ("wire:w,seed=-1", "a whole number"),
            ("wire:w,jitter=1ms", "'jitter' is no option of a wire; known are delay="),
            ("packet:lo", "loopback"),
            ("tap:my tap", "without spaces"),
            ("tap:a/b", "without spaces"),
            ("tap:abcdefghijklmnop", "1 to 15 bytes"),
            ("packet:..", "no name of an interface"),
        ] {
            let error = text.parse::<Nic>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_are_parsed() {
        assert_eq!(parse_address("10.0.0.2/24"), Ok(("10.0.0.2".parse().unwrap(), 24)));
        assert_eq!(parse_address("fd00::2/128"), Ok(("fd00::2".parse().unwrap(), 128)));
        for (text, why) in [
            ("10.0.0.2", "has no length"),
            ("10.0.0/24", "not an address"),
            ("10.0.0.2/33", "up to 32"),
            ("fd00::2/129", "up to 128"),
            ("0.0.0.0/0", "the unspecified address"),
            ("224.0.0.1/4", "is a multicast address"),
            ("127.0.0.1/8", "127.0.0.1 is a loopback address"),
            ("::1/128", "::1 is a loopback address"),
            ("255.255.255.255/32", "the broadcast address"),
        ] {
            let error = parse_address(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_and_gateways_fit_together() {
        let check = |addresses: &str, gateways: &str| {
            let addresses = addresses.split_whitespace().map(|text| parse_address(text).unwrap()).collect();
            let gateways = gateways.split_whitespace().map(|text| text.parse().unwrap()).collect();
            let (socket, nic) = ("s".into(), Nic::Tap("t".into()));
            Config { socket, nic, addresses, gateways, mac: [2; 6], clients_max: 1 }.check()
        };
        for (addresses, gateways) in [
            ("10.0.0.2/24", "10.0.0.1"),
            ("10.0.0.2/24 fd00::2/64", "fd00::1 10.0.0.254"),
            ("10.0.0.2/8 10.0.0.3/32", "10.255.0.1"),
            // RFC 3021 and RFC 6164: no address of these networks is special.
            ("10.0.0.0/31", "10.0.0.1"),
            ("10.0.0.255/31 10.0.0.7/32", ""),
            ("fd00::/127 fd00::8/128", ""),
            ("fd00::2/64", "fe80::1"),
            ("fd00::ffff:ffff:ffff:ffff/64", ""),
        ] {
            assert_eq!(check(addresses, gateways), Ok(()), "{addresses}, {gateways}");
        }
        for (addresses, gateways, why) in [
            ("10.0.0.2/24", "10.0.1.1", "gateway 10.0.1.1 is in no network of --address 10.0.0.2/24"),
            ("10.0.0.2/32", "10.0.0.1", "is in no network"),
            ("10.0.0.2/24", "10.0.0.2", "an address of the stack itself"),
            ("10.0.0.2/24", "10.0.0.255", "is the broadcast address of the network"),
            ("10.0.0.2/24", "10.0.0.0", "is the address of the network"),
            ("10.0.0.2/24", "fd00::1", "no IPv6 address"),
            ("fd00::2/64", "10.0.0.1", "no IPv4 address"),
            ("10.0.0.2/24", "fe80::1", "no IPv6 address"),
            ("10.0.0.0/24", "", "is the address of the network"),
            ("10.0.0.255/24", "", "is the broadcast address"),
            ("10.0.0.3/30", "", "is the broadcast address"),
            ("fd00::/64", "", "the anycast address of the routers"),
            ("10.0.0.2/24 10.0.0.2/16", "", "10.0.0.2 is given twice"),
        ] {
            let error = check(addresses, gateways).unwrap_err();
            assert!(error.contains(why), "{addresses}, {gateways}: {error}");
        }
    }

    #[test]
    fn mac_addresses_are_those_of_one_station() {
        let mac = parse_mac("02:0A:00:00:00:ff").unwrap();
        assert_eq!(show_mac(mac), "02:0a:00:00:00:ff");
        for text in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "zz:00:00:00:00:01"] {
            assert!(parse_mac(text).unwrap_err().contains("not a MAC address"), "{text}");
        }
        for text in ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01"] {
            assert!(parse_mac(text).unwrap_err().contains("is a multicast address"), "{text}");
        }
        assert!(parse_mac("00:00:00:00:00:00").unwrap_err().contains("no address of a station"));
    }

    #[test]
    fn at_least_one_application_has_a_place_and_at_most_those_that_a_driver_knows() {
        assert_eq!((parse_clients("1"), parse_clients("64")), (Ok(1), Ok(64)));
        for text in ["0", "65", "-1", "many"] {
            assert!(parse_clients(text).is_err(), "{text}");
        }
    }
}
