# Guest script: cryptsetup and dm-crypt of the stock kernel on LUNs of a server on the host, which is logged in to by open-iscsi.
# PORT, IQN: the target. LUN 0: storage with an empty LUKS2 volume. LUN 1: another volume's plaintext. LUN 2: that volume's
# ciphertext, read-only. LUN 3: storage with an ext4 in plaintext, as a view. SECTOR: bytes of all volumes' sectors.
# Prints lines as check.sh has them, and "WHOLE md5" of the plaintext on LUN 0.

. /lab/check.sh
ln -sf ../bin/modprobe /sbin/modprobe
for module in iscsi_tcp sd_mod ext4 crc32c_generic dm_crypt xts aesni_intel algif_skcipher; do modprobe $module 2> /dev/null; done
printf 'of a test' > /tmp/pw
iscsistart -i iqn.2026-11.org.example:guest -t "$IQN" -g 1 -a 10.0.2.2 -p "$PORT" > $said 2>&1 || { fail login; exit 7; }
disk() { # LUN
  for path in /sys/block/sd*; do
    case $(readlink $path/device) in *:$1) echo /dev/${path##*/} ;; esac
  done
}
there() { test -b "$(disk $1)"; }
for lun in 0 1 2 3; do wait_for there $lun || { echo "no LUN $lun" > $said; fail login; exit 8; }; done
pass login

opens() { # LUN NAME OPTION...: /dev/mapper/NAME is the plaintext, in sectors of SECTOR bytes
  device=$(disk $1) volume=$2; shift 2
  cryptsetup open "$@" --key-file /tmp/pw $device $volume && cryptsetup status $volume | tee /dev/stderr | grep -q "sector size: *$SECTOR\$"
}
fills() { # DEVICE: makes an ext4 with files of many sizes and their sums
  mkfs.ext4 -q -F $1 && mount $1 /mnt || return 1
  for n in 1 2 3 4 5 6 7 8; do dd if=/dev/urandom of=/mnt/$n bs=$((n * 4099)) count=$((n * 7)) 2> /dev/null; done
  (cd /mnt && md5sum [0-9] > SUMS) && sync && rm /mnt/3 && dd if=/dev/urandom of=/mnt/5 bs=512 seek=33 count=1 conv=notrunc 2> /dev/null
  (cd /mnt && md5sum [0-9] > SUMS) && umount /mnt
}
holds() { # DEVICE: the sums are those of its files
  echo 3 > /proc/sys/vm/drop_caches
  mount -o ro $1 /mnt && (cd /mnt && md5sum -c SUMS) && umount /mnt
}
whole() { echo 3 > /proc/sys/vm/drop_caches; md5sum < $1 | cut -d' ' -f1; }

check opens-our-volume opens 0 ours
check writes-ext4 fills /dev/mapper/ours
check reads-ext4 holds /dev/mapper/ours
echo "WHOLE $(whole /dev/mapper/ours)"
check closes cryptsetup close ours

# Written through the host's volume, read by dm-crypt from its ciphertext.
check writes-through-the-host fills $(disk 1)
sum=$(whole $(disk 1))
check opens-their-ciphertext opens 2 theirs --readonly
check reads-their-ext4 holds /dev/mapper/theirs
check reads-every-byte test "$(whole /dev/mapper/theirs)" = "$sum"
check closes-their-ciphertext cryptsetup close theirs

check opens-the-view opens 3 view --readonly
check reads-the-view holds /dev/mapper/view
check closes-the-view cryptsetup close view
