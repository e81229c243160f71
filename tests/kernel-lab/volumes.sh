# Guest script: LVM's volumes as sources. What `copy --since` of two thin volumes moves, and what `--snapshot auto` leaves behind: nothing,
# whatever ends the copy. One SCSI disk of QEMU's, 1 GiB, is the volume group. Prints lines as check.sh has them.

. /lab/check.sh
export LD_LIBRARY_PATH=/lab HOME=/tmp XDG_STATE_HOME=/tmp/state
for module in crc32c_generic virtio_pci virtio_scsi sd_mod dm_thin_pool dm_snapshot ext4; do modprobe $module; done
# LVM calls it by this name.
ln -s ../bin/modprobe /sbin/modprobe
mkdir -p /etc/lvm /run/lock/lvm
cat > /etc/lvm/lvm.conf <<'CONF'
devices { obtain_device_list_from_udev=0 use_devicesfile=0 }
activation { udev_sync=0 udev_rules=0 monitoring=0 thin_pool_autoextend_threshold=100 }
global { thin_check_executable="/bin/thin_check" }
CONF
hikyaku=/lab/hikyaku
dst=/tmp/dst

wait_for test -e /dev/sda || { echo "FAIL disk"; dmesg | tail; exit 9; }
lvm() { /bin/lvm "$@" > $said 2>&1 || fail "lvm $*"; }
lvm vgcreate vg /dev/sda
lvm lvcreate -L 160M -T vg/pool -c 64K
lvm lvcreate -V 40M -T vg/pool -n data
moment() { lvm lvcreate --snapshot --setactivationskip n --permission r --name $1 vg/data; }
pool() { echo vg-${1:-pool}-tpool; }
is_released() { dmsetup status $(pool $1) | awk '{ exit $7 != "-" }'; }
told() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" $said; }

# The first copy is whole. Of 40 MiB 24 are there.
dd if=/dev/urandom of=/dev/vg/data bs=1M count=24 2> /dev/null
moment old
truncate -s 40M $dst
expect whole 0 verified $hikyaku copy /dev/vg/old $dst --verify

# Exactly what has changed: in blocks of 64 KiB, two, and one of which 512 bytes are new.
dd if=/dev/urandom of=/dev/vg/data bs=64K seek=5 count=2 2> /dev/null
dd if=/dev/urandom of=/dev/vg/data bs=512 seek=33333 count=1 2> /dev/null
moment new
expect since 0 '"verified":true' $hikyaku copy /dev/vg/new $dst --since /dev/vg/old --force --json --verify
check since-exact test "$(told unchanged_bytes)" = $((40 * 1048576 - 3 * 65536))
check since-same cmp /dev/vg/new $dst
check since-released is_released
lvm lvremove -f vg/old

# Round by round, changes of every kind; SEED says which.
random() { SEED=$(((SEED * 1103515245 + 12345) & 2147483647)); echo $((SEED / 65536 % $1)); }
lvm lvchange -an vg/new; lvm lvrename vg/new old; lvm lvchange -ay vg/old
for round in $(seq $ROUNDS); do
  for _ in $(seq $(($(random 6) + 1))); do
    at=$(random 9500) length=$(($(random 200) + 1))
    case $(random 4) in
      0) dd if=/dev/urandom of=/dev/vg/data bs=4K seek=$at count=$length 2> /dev/null ;;
      1) dd if=/dev/zero of=/dev/vg/data bs=4K seek=$at count=$length 2> /dev/null ;;
      2) blkdiscard -o $((at * 4096)) -l $((length * 65536)) /dev/vg/data 2> /dev/null ;;
      3) dd if=/dev/urandom of=/dev/vg/data bs=512 seek=$((at * 8 + 3)) count=1 2> /dev/null ;;
    esac
  done
  [ $round != 3 ] || { lvm lvextend -L +8M vg/data; truncate -s 48M $dst; }
  sync; moment new
  $hikyaku copy /dev/vg/new $dst --since /dev/vg/old --force --json > $said 2>&1 && cmp /dev/vg/new $dst >> $said 2>&1 && is_released
  if [ $? = 0 ]; then pass round-$round; else fail round-$round; fi
  lvm lvremove -f vg/old; lvm lvchange -an vg/new; lvm lvrename vg/new old; lvm lvchange -ay vg/old
done

# A source that is mounted and written, by a snapshot that is made for the copy: --verify reads both.
mkdir -p /mnt; mkfs.ext4 -q -F /dev/vg/data > /dev/null 2>&1; mount /dev/vg/data /mnt
writer() { n=0; while [ -e /tmp/write ]; do n=$((n + 1)); dd if=/dev/urandom of=/mnt/$((n % 20)) bs=64K count=4 2> /dev/null; sync; sleep 0.2; done; }
touch /tmp/write; writer & writer=$!
expect snapshot-since 0 '"verified":true' $hikyaku copy /dev/vg/data $dst --snapshot auto --since /dev/vg/old --force --json --verify
check snapshot-since-clean e2fsck -fn $dst

# Nothing is left, whatever ends it; thin and thick.
no_snapshot() { ! lvs --noheadings -o lv_name vg 2> /dev/null | grep -q hikyaku-; }
leaves_nothing() { # VOLUME NAME
  expect $2-ends 0 '"snapshot":"lvm"' $hikyaku copy $1 $dst --snapshot auto --force --json
  check $2-ends-clean e2fsck -fn $dst
  check $2-ends-nothing no_snapshot
  for signal in TERM KILL; do
    $hikyaku copy $1 $dst --snapshot auto --force --rate 1M > /tmp/copy 2>&1 & copy=$!
    wait_for sh -c "lvs --noheadings -o lv_name vg | grep -q hikyaku-$copy"; found=$?
    sleep 3; kill -$signal $copy; wait $copy; code=$?
    cp /tmp/copy $said; echo "found $found, exit $code" >> $said
    check $2-$signal-made test $found = 0
    [ $signal = KILL ] || check $2-$signal-code test $code = 143
    wait_for no_snapshot
    check $2-$signal-nothing no_snapshot
  done
}
leaves_nothing /dev/vg/data thin
rm /tmp/write; wait $writer; umount /mnt
lvm lvcreate -L 32M -n thick vg
mkfs.ext4 -q -F /dev/vg/thick > /dev/null 2>&1; mount /dev/vg/thick /mnt
touch /tmp/write; writer & writer=$!
leaves_nothing /dev/vg/thick thick
rm /tmp/write; wait $writer; umount /mnt

# Refusals say what to do.
since() { $hikyaku copy /dev/vg/data $dst --force --since "$@"; }
expect thick 6 "no thin volume.*linear" since /dev/vg/thick
expect disk 6 "no thin volume" since /dev/sda
lvm lvcreate -L 16M -T vg/pool2 -c 64K
lvm lvcreate -V 40M -T vg/pool2 -n else
expect pools 6 "different pools" since /dev/vg/else
lvm lvchange -an vg/old
expect inactive 2 "ignoreactivationskip" since /dev/vg/old
lvm lvchange -ay vg/old
expect itself 6 "source itself" since /dev/vg/data
# A volume whose origin is no part of the pool.
dmsetup message $(pool) 0 "create_thin 77"
dmsetup create outside --table "0 65536 thin /dev/mapper/$(pool) 77 /dev/vg/thick"
dmsetup mknodes
expect origin 6 "external origin" since /dev/mapper/outside
dmsetup remove outside
dmsetup message $(pool) 0 reserve_metadata_snap
expect reserved 1 "release_metadata_snap" since /dev/vg/old
check reserved-stays sh -c "! dmsetup status $(pool) | awk '{ exit \$7 != \"-\" }'"
dmsetup message $(pool) 0 release_metadata_snap
mv /bin/thin_delta /tmp/away
expect no-tool 1 "thin-provisioning-tools" since /dev/vg/old

# Killed while the pool is asked, and stopped.
printf '#!/bin/sh\n[ $1 = --version ] || sleep 4\nexec /bin/pdata_tools thin_delta "$@"\n' > /bin/thin_delta; chmod +x /bin/thin_delta
for signal in TERM KILL; do
  $hikyaku copy /dev/vg/data $dst --force --since /dev/vg/old > /tmp/copy 2>&1 & copy=$!
  wait_for sh -c "! dmsetup status $(pool) | awk '{ exit \$7 != \"-\" }'"; found=$?
  kill -$signal $copy; sleep 1
  is_released && found=early
  wait $copy; code=$?
  wait_for is_released
  cp /tmp/copy $said; echo "found $found, exit $code" >> $said
  check asked-$signal-reserved test $found = 0
  check asked-$signal-released is_released
  check asked-$signal-code test $code = $(case $signal in TERM) echo 143 ;; KILL) echo 137 ;; esac)
done
