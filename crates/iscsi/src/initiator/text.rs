//! SendTargets at the initiator (RFC 7143 Appendix C).
//!
//! The response comes from an untrusted peer: malformed names and addresses are omitted without an error.

use super::management::TEXT_SLOT;
use super::task::tag;
use super::transmit::Control;
use super::{Connection, Event, Segment};
use crate::limits::{ADDRESSES_MAX, TARGETS_MAX, TEXT_RESPONSE_MAX};
use crate::machine::{Fatal, TargetRecord};
use crate::name::{IscsiName, TargetAddress};
use crate::text::{self, Collector};
use crate::wire::{Itt, TextResponse, Ttt};

#[derive(Debug, Default)]
pub(super) struct Text {
    generation: u32,
    open: Option<Itt>,
    collector: Collector,
}

impl Connection {
    /// Requests targets: all in a discovery session, else the session's own. [`Event::Targets`] carries the answer.
    /// Does nothing outside of the full feature phase, after a logout, or while a request is outstanding.
    pub fn send_targets(&mut self) {
        if !self.is_full_feature() || self.text.open.is_some() || self.logout.is_some() {
            return;
        }
        let itt = tag(TEXT_SLOT, self.text.generation);
        let generation = self.text.generation.wrapping_add(1);
        self.text = Text { generation, open: Some(itt), collector: Collector::new() };
        let mut data = Vec::new();
        text::emit("SendTargets", if self.discovery { "All" } else { "" }, &mut data);
        self.urgent.push_back(Control::Text { itt, ttt: Ttt::RESERVED, data });
    }

    pub(super) fn on_text_header(&mut self) -> Result<(), Fatal> {
        let response =
            TextResponse::parse(&self.header).map_err(|_| Fatal::Protocol("malformed text response"))?;
        self.on_stat_sn(response.stat_sn);
        if self.text.open != Some(response.itt) {
            return Err(Fatal::Protocol("text response without a request"));
        }
        if !response.is_final && response.ttt.is_reserved() {
            return Err(Fatal::Protocol("text response that goes on without a transfer tag"));
        }
        if response.data_segment_length > 0 {
            self.segment = Segment::Text;
            return Ok(());
        }
        self.on_text(&[])
    }

    pub(super) fn on_text(&mut self, segment: &[u8]) -> Result<(), Fatal> {
        let response =
            TextResponse::parse(&self.header).map_err(|_| Fatal::Protocol("malformed text response"))?;
        let whole = self
            .text
            .collector
            .push(segment, !response.is_final, TEXT_RESPONSE_MAX)
            .map_err(|_| Fatal::Protocol("SendTargets answer too long, or without end"))?;
        match whole {
            Some(whole) => {
                self.text.open = None;
                self.events.push_back(Event::Targets(targets(&whole)));
                Ok(())
            }
            // §6.2: an empty request requests the rest of the text.
            None => {
                self.push_control(Control::Text { itt: response.itt, ttt: response.ttt, data: Vec::new() })
            }
        }
    }
}

/// Parses `TargetName`, `TargetAddress`, `TargetAddress`, ..., `TargetName`, ...
fn targets(text: &[u8]) -> Vec<TargetRecord> {
    let mut targets: Vec<TargetRecord> = Vec::new();
    // False after a malformed name: the addresses that follow it are skipped.
    let mut known = false;
    for pair in text.split(|&byte| byte == 0) {
        let pair = std::str::from_utf8(pair).unwrap_or("");
        match pair.split_once('=') {
            Some(("TargetName", name)) => {
                known = false;
                if let Ok(name) = IscsiName::parse(name)
                    && targets.len() < TARGETS_MAX
                {
                    known = true;
                    targets.push(TargetRecord { name, addresses: Vec::new() });
                }
            }
            Some(("TargetAddress", address)) if known => {
                let target = targets.last_mut().expect("a target is known");
                if let Ok(address) = TargetAddress::parse(address)
                    && target.addresses.len() < ADDRESSES_MAX
                {
                    target.addresses.push(address);
                }
            }
            _ => {}
        }
    }
    targets
}
