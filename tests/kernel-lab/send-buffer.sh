# Guest script: open-iscsi to LIO over a pair of virtual interfaces with netem, both in this kernel, while `hikyaku watch
# --json` observes the initiator's connection: first as open-iscsi is (SO_SNDBUF of 512 KiB), then with
# node.conn[0].tcp.window_size = 0. Variables: DELAY_MS (each way), SECONDS_EACH. In /lab: hikyaku and its libraries.
# Prints WATCH CASE and a JSON object for each interval, RATE CASE BYTES/S.
set -e
for module in crc32c_generic libcrc32c target_core_mod target_core_file iscsi_target_mod iscsi_tcp sd_mod veth sch_netem \
  tcp_diag; do
  modprobe $module 2>/dev/null || true
done
mount -t configfs config /sys/kernel/config 2>/dev/null || true
serve() { # NAME NUMBER ADDRESS: a target with one LUN in memory
  core=/sys/kernel/config/target/core/fileio_$2/disk
  mkdir -p $core
  echo "fd_dev_name=/tmp/$1.img,fd_dev_size=67108864" > $core/control
  echo 1 > $core/enable
  group=/sys/kernel/config/target/iscsi/iqn.2026-11.org.example:$1/tpgt_1
  mkdir -p $group/lun/lun_0 $group/np/$3:3260
  ln -s $core $group/lun/lun_0/disk
  echo 0 > $group/attrib/demo_mode_write_protect
  echo 1 > $group/attrib/generate_node_acls
  echo 1 > $group/attrib/cache_dynamic_acls
  echo 0 > $group/attrib/authentication
  echo 1 > $group/enable
}
# Portals belong to the network namespace of the process that makes them.
case ${1:-} in
  serve) serve fixed 0 10.77.0.2; serve freed 1 10.77.0.3; exit ;;
esac

mkdir -p /lib/x86_64-linux-gnu
for library in /lab/*.so*; do cp -n "$library" /lib/x86_64-linux-gnu/; done
chmod 755 /lab/hikyaku

# The applets of busybox would go before programs without a path.
/bin/ip netns add far
/bin/ip link add near0 type veth peer name far0 netns far
/bin/ip addr add 10.77.0.1/24 dev near0
/bin/ip link set near0 up
/bin/ip -n far link set lo up
/bin/ip -n far addr add 10.77.0.2/24 dev far0
/bin/ip -n far addr add 10.77.0.3/24 dev far0
/bin/ip -n far link set far0 up
/bin/tc qdisc add dev near0 root netem delay "${DELAY_MS}ms" limit 100000
/bin/ip netns exec far /bin/tc qdisc add dev far0 root netem delay "${DELAY_MS}ms" limit 100000
echo 4194304 > /proc/sys/net/core/wmem_max
echo "NETEM $(/bin/tc qdisc show dev near0)"

/bin/ip netns exec far /bin/sh /script serve
echo LIO-UP

measure() { # NAME ADDRESS PARAMETER...: writes for SECONDS_EACH, with the connection observed
  name=$1
  address=$2
  shift 2
  iscsistart -i iqn.2026-11.org.example:guest -t "iqn.2026-11.org.example:$name" -g 1 -a $address -p 3260 "$@" \
    > /tmp/login 2>&1 || { tail -5 /tmp/login; echo LOGIN-FAILED; exit 7; }
  disk=""
  tries=0
  while [ -z "$disk" ] && [ $tries -lt 60 ]; do
    for path in /sys/class/iscsi_session/session*/device/target*/*/block/sd*; do
      session=${path#/sys/class/iscsi_session/}
      session=${session%%/*}
      [ "$(cat /sys/class/iscsi_session/$session/targetname 2>/dev/null)" = "iqn.2026-11.org.example:$name" ] \
        && disk=/dev/${path##*/}
    done
    [ -b "$disk" ] || { disk=""; sleep 0.5; }
    tries=$((tries + 1))
  done
  [ -b "$disk" ] || { echo "no disk appeared"; tail -5 /tmp/login; exit 8; }
  echo "LOGIN-OK $name $disk"
  sectors() { awk '{ print $7 }' "/sys/block/${disk##*/}/stat"; }
  # Until the congestion window has grown.
  ( while :; do dd if=/dev/zero of=$disk bs=8M count=8 oflag=direct 2>/dev/null; done ) & writers="$!"
  sleep "$SECONDS_EACH"
  before=$(sectors)
  /lab/hikyaku watch $address:3260 --json --for "${SECONDS_EACH}s" | sed "s/^/WATCH $name /"
  echo "RATE $name $((($(sectors) - before) * 512 / SECONDS_EACH))"
  kill $writers
  wait $writers 2>/dev/null || true
  # Its dd goes on until it has written all.
  while pidof dd > /dev/null; do sleep 0.2; done
}
measure fixed 10.77.0.2
measure freed 10.77.0.3 --param "node.conn[0].tcp.window_size=0"
/bin/ss -tinm dport = :3260
echo DONE
