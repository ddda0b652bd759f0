//! TCP connections of mesh callers to the app.

use tollway_model::{AppProtocol, ErrorCode};

use crate::conn::{ConnKey, Connections, Relay, Role, access_log};
use crate::cx::Cx;
use crate::inbound::policy::{PolicyGate, admit_tcp};
use crate::observe::Kind;
use crate::upstream::relay_dial;

/// A mesh peer wants the app's bytes: only if that is what the app speaks.
pub(crate) fn open_app_tcp(
    cx: &mut Cx,
    conns: &mut Connections,
    policy: &mut PolicyGate,
    key: ConnKey,
) -> bool {
    access_log::begin_line(cx, conns, key, Kind::Tcp, None);
    let address = match conns.get(key).and_then(|conn| conn.app_port) {
        Some(port) => cx.ports.for_bytes(port, cx.config.app_ip),
        None => {
            let app = cx.config.app.as_ref().filter(|app| app.protocol == AppProtocol::Tcp);
            app.map(|app| app.addresses.best())
        }
    };
    let Some(address) = address else {
        cx.metrics.request_failures.add(1);
        access_log::fail_line(conns, key, ErrorCode::NotTcp);
        conns.close(cx, key);
        return false;
    };
    if !admit_tcp(cx, conns, policy, key) {
        return false;
    }
    let now = cx.now;
    let Some(conn) = conns.get_mut(key) else { return false };
    conn.role = Role::Relay(Relay::to_be_dialled(Vec::new(), now));
    relay_dial::dial_relayed(cx, conns, key, address)
}
