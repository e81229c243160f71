# Guest script: the kernel's initiator (open-iscsi's iscsistart, iscsi_tcp) on a target of the host.
# Variables: PORT, IQN, LUN (numbered as the target does), optionally CHAP_USER and CHAP_SECRET.
# Prints LOGIN-OK, SIZE n, MD5-SAME, TRIM-OK, FSCK-CLEAN, RAW-SAME.
set -e
for module in iscsi_tcp sd_mod ext4 crc32c_generic sg; do modprobe $module 2>/dev/null || true; done
iscsistart -i iqn.2026-11.org.example:guest -t "$IQN" -g 1 -a 10.0.2.2 -p "$PORT" \
  ${CHAP_USER:+-u "$CHAP_USER" -w "$CHAP_SECRET"} > /tmp/login 2>&1 || { tail -5 /tmp/login; echo LOGIN-FAILED; exit 7; }
disk=""
tries=0
while [ -z "$disk" ] && [ $tries -lt 60 ]; do
  for path in /sys/block/sd*; do
    # The address is host:channel:target:lun.
    case $(readlink "$path/device" 2>/dev/null) in *:$LUN) disk=/dev/${path##*/} ;; esac
  done
  [ -b "$disk" ] || { disk=""; sleep 0.5; }
  tries=$((tries + 1))
done
[ -b "$disk" ] || { echo "no disk appeared"; tail -5 /tmp/login; exit 8; }
echo LOGIN-OK
queue=/sys/block/${disk##*/}/queue
echo "SIZE $(($(cat /sys/block/${disk##*/}/size) * 512)) BLOCK $(cat $queue/logical_block_size)" \
  "DISCARD $(cat $queue/discard_max_bytes) CACHE $(cat $queue/write_cache)"
sg_inq $disk | sed -n 's/^ *\(Vendor\|Product\|Unit serial\).*/&/p'

mkfs.ext4 -q -F $disk
mount -t ext4 -o discard $disk /mnt
dd if=/dev/urandom of=/mnt/a bs=64k count=256 2>/dev/null
sum=$(md5sum < /mnt/a)
mkdir /mnt/d
for n in 1 2 3 4 5 6 7 8 9; do cp /init /mnt/d/$n; done
sync
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
mount -t ext4 $disk /mnt
[ "$(md5sum < /mnt/a)" = "$sum" ] && echo MD5-SAME
rm /mnt/a
fstrim /mnt && echo TRIM-OK
umount /mnt
e2fsck -fn $disk && echo FSCK-CLEAN

# Sizes and offsets that file systems do not use, straight to the disk at its end.
end=$(($(cat /sys/block/${disk##*/}/size) / 8 - 64))
dd if=/dev/urandom of=/tmp/raw bs=4096 count=37 2>/dev/null
dd if=/tmp/raw of=$disk bs=4096 seek=$end conv=fsync 2>/dev/null
echo 3 > /proc/sys/vm/drop_caches
dd if=$disk bs=4096 skip=$end count=37 2>/dev/null | cmp - /tmp/raw && echo RAW-SAME
