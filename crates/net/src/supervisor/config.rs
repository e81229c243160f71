//! What `net up` is asked for.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::control::{Device, Wire};
use crate::nic::{CLIENTS_MAX, Opened, packet, tap, wire};

/// Addresses and gateways of one stack: tables of `inet` have fixed sizes.
pub const ADDRESSES_MAX: usize = 8;
pub const GATEWAYS_MAX: usize = 2;
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
    pub fn open(&self, mac: [u8; 6]) -> std::io::Result<Opened> {
        match self {
            Self::Tap(name) => tap::open(name),
            Self::Packet(name) => packet::open(name, mac),
            Self::Wire(path, _) => wire::open(path),
        }
    }

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

/// `tap:NAME`, `packet:INTERFACE` or `wire:PATH[,option=value...]`; a comma in a path is written twice.
impl FromStr for Nic {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let forms = "write tap:NAME, packet:INTERFACE or wire:PATH";
        let (kind, rest) = text.split_once(':').ok_or_else(|| format!("'{text}' has no kind; {forms}"))?;
        let mut parts = split(rest).into_iter();
        let name = parts.next().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| format!("'{text}' has no name; {forms}"))?;
        let nic = match kind {
            "tap" => Self::Tap(name),
            "packet" => Self::Packet(name),
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
    let explain = |why: &str| format!("'{option}': {why}; {known}");
    match name {
        "delay" => {
            let us = scaled(value, &[("us", 1.0), ("ms", 1e3), ("s", 1e6)]);
            let us = us.filter(|&us| us <= DELAY_US_MAX as f64);
            wire.delay_us = us.ok_or_else(|| explain("a time up to 10s"))?.round() as u64;
        }
        "rate" => {
            let units = [("kbit", 1e3), ("Mbit", 1e6), ("Gbit", 1e9)];
            let rate = scaled(value.strip_suffix("/s").unwrap_or(value), &units);
            let rate = rate.filter(|rate| (1e3..=1e12).contains(rate));
            wire.bits_per_s = rate.ok_or_else(|| explain("a rate from 1kbit to 1000Gbit"))?.round() as u64;
        }
        "loss" => wire.loss = share(value).ok_or_else(|| explain("a share"))?,
        "reorder" => wire.reordering = share(value).ok_or_else(|| explain("a share"))?,
        "duplicate" => wire.duplication = share(value).ok_or_else(|| explain("a share"))?,
        "seed" => wire.seed = value.parse().map_err(|_| explain("a number"))?,
        _ => return Err(explain("no such option")),
    }
    Ok(())
}

/// A number with one of some units.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let end = text.find(|character: char| character.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(end);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * scale)
}

/// `1%` or `0.01`.
fn share(text: &str) -> Option<f64> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
    let share = number.parse::<f64>().ok()? / scale;
    (0.0..=1.0).contains(&share).then_some(share)
}

/// `10.0.0.2/24`.
pub fn parse_address(text: &str) -> Result<(IpAddr, u8), String> {
    let example = "write for example 10.0.0.2/24 or fd00::2/64";
    let (address, length) = text.split_once('/').ok_or(format!("'{text}' has no length; {example}"))?;
    let address: IpAddr = address.parse().map_err(|_| format!("'{text}' is not an address; {example}"))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = length.parse().ok().filter(|length| *length <= most);
    let length = length.ok_or_else(|| format!("'{text}': the length is a number up to {most}; {example}"))?;
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err(format!("'{text}' is no address of a station; {example}"));
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
    if mac[0] & 1 == 1 || mac == [0; 6] {
        return Err(format!(
            "'{text}' is no address of one station: the first byte is even, and not all are 0"
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
            (
                "wire:w,delay=25.5ms,rate=0.1Gbit/s,loss=1%,reorder=0.005,duplicate=100%,seed=7",
                wire("w", all),
            ),
        ] {
            assert_eq!(text.parse(), nic, "{text}");
        }
        for (text, why) in [
            ("tap0", "write tap:NAME"),
            ("tap:", "has no name"),
            ("tap:t,delay=1ms", "only wire: has options"),
            ("bridge:b", "no kind of interface"),
            ("wire:w,delay", "has no value"),
            ("wire:w,delay=1", "a time up to 10s"),
            ("wire:w,delay=11s", "a time up to 10s"),
            ("wire:w,delay=-1ms", "a time up to 10s"),
            ("wire:w,rate=1GB", "a rate"),
            ("wire:w,rate=0kbit", "a rate"),
            ("wire:w,loss=101%", "a share"),
            ("wire:w,loss=NaN", "a share"),
            ("wire:w,seed=-1", "a number"),
            ("wire:w,jitter=1ms", "no such option; known are delay="),
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
            ("0.0.0.0/0", "no address of a station"),
            ("224.0.0.1/4", "no address of a station"),
            ("::1/128", "no address of a station"),
        ] {
            let error = parse_address(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn mac_addresses_are_those_of_one_station() {
        let mac = parse_mac("02:0A:00:00:00:ff").unwrap();
        assert_eq!(show_mac(mac), "02:0a:00:00:00:ff");
        for text in ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "2:0:0:0:0:1", "zz:00:00:00:00:01"] {
            assert!(parse_mac(text).unwrap_err().contains("not a MAC address"), "{text}");
        }
        for text in ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:01", "00:00:00:00:00:00"] {
            assert!(parse_mac(text).unwrap_err().contains("one station"), "{text}");
        }
    }

    #[test]
    fn at_least_one_application_has_a_place_and_at_most_those_that_a_driver_knows() {
        assert_eq!((parse_clients("1"), parse_clients("64")), (Ok(1), Ok(64)));
        for text in ["0", "65", "-1", "many"] {
            assert!(parse_clients(text).is_err(), "{text}");
        }
    }
}
