# Guest script, on Debian with systemd: types docs/guides/open-iscsi.md, which lies in /lab, section by section: indented
# lines, with the words in capitals replaced. Prints lines as check.sh has them. In /lab: hikyaku.deb.

. /lab/check.sh
target=iqn.2026-11.org.example:guide
is() { # WANTED COMMAND...: its output
  wanted=$1; shift
  got=$("$@" 2>&1)
  [ "$got" = "$wanted" ] || { echo "$* gave '$got', expected '$wanted'"; return 1; }
}
typed() { # HEADING: the commands of a section
  awk -v heading="## $1" 'index($0, "## ") == 1 { here = index($0, heading) == 1 } here && /^    / { print substr($0, 5) }' \
    /lab/open-iscsi.md | sed "s/TARGETUSER/storage/g; s/TARGETSECRET/other-of-16-byte/g; s/TARGET/$target/g; s/PORTAL2/127.0.0.2:3260/g
      s/PORTAL/127.0.0.1:3260/g; s/USER/kvm1/g; s/SECRET/secret-of-16-byt/g" > /tmp/typed
  [ -s /tmp/typed ] && sh -ex /tmp/typed
}
modprobe iscsi_tcp; modprobe sd_mod; modprobe dm_multipath; modprobe dm_service_time
dpkg -i /lab/hikyaku.deb > /tmp/log 2>&1 || cat /tmp/log
install -d -o hikyaku /srv/hikyaku
truncate -s 16M /srv/hikyaku/a.img; chown hikyaku /srv/hikyaku/a.img
printf secret-of-16-byt > /tmp/u; printf other-of-16-byte > /tmp/m
install -o hikyaku -m 600 /tmp/u /etc/hikyaku/secrets/kvm1
install -o hikyaku -m 600 /tmp/m /etc/hikyaku/secrets/storage
configure() { # ROWS besides those of CHAP in one direction
  cat > /etc/hikyaku/hikyaku.toml <<CONF
[server]
listen = ["127.0.0.1:3260", "127.0.0.2:3260"]
[[target]]
iqn = "$target"
[[target.lun]]
lun = 0
endpoint = "/srv/hikyaku/a.img"
[[target.acl]]
chap-user = "kvm1"
secret-file = "secrets/kvm1"
$1
CONF
}
configure ""
systemctl start hikyaku.service systemd-udevd.service iscsid.service
check one-way typed "One way"
configure 'mutual-chap-user = "storage"
mutual-secret-file = "secrets/storage"'
systemctl reload hikyaku.service
sleep 2
check both-ways typed "Both ways"
check logged-in sh -c "iscsiadm -m session -P 2 | grep -q 'username_in: storage'"
check two-portals typed "Two portals"
# The map needs udev's answer to both disks.
maps() { timeout 10 multipath -ll > /tmp/maps; }
joined() { maps; [ "$(grep -c 'active ready running' /tmp/maps)" = 2 ] && [ "$(grep -c 'hikyaku,' /tmp/maps)" = 1 ]; }
check one-map-two-paths wait_for joined
check one-group is 1 grep -c 'policy=' /tmp/maps
check queues-without-paths grep queue_if_no_path /tmp/maps
disk=$(ls -d /dev/mapper/1hikyaku_*)
check written sh -c "dd if=/dev/urandom of=/tmp/data bs=64k count=8 && dd if=/tmp/data of=$disk bs=64k conv=fsync"
check one-path-lost iscsiadm -m node -T $target -p 127.0.0.1:3260 --logout
echo 3 > /proc/sys/vm/drop_caches
check read-by-the-other cmp -n 524288 /tmp/data $disk
