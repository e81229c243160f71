// A load by libiscsi: load w|r URL BLOCK DEPTH SECONDS WARM_SECONDS THINK_US prints MB/s after the warm-up.
// With THINK_US the next DEPTH commands begin that long after the end of all before.
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct iscsi_context *iscsi;
static int lun, is_write, outstanding;
static uint32_t block;
static uint64_t at, blocks, bytes;
static unsigned char *buffer;
static double begin, end, first, last;
static long think_us;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, iscsi_get_error(iscsi));
    exit(1);
}

static void issue(void);

static void done(struct iscsi_context *context, int status, void *data, void *private) {
    (void)context, (void)private;
    if (status != SCSI_STATUS_GOOD) fail("command");
    scsi_free_scsi_task(data);
    double time = now();
    if (time > begin && time < end) {
        if (first == 0) first = time; else bytes += block;
        last = time;
    }
    outstanding--;
    if (time < end && think_us == 0) issue();
}

static void issue(void) {
    if (at + block / 512 > blocks) at = 0;
    struct scsi_task *task = is_write
        ? iscsi_write16_task(iscsi, lun, at, buffer, block, 512, 0, 0, 0, 0, 0, done, NULL)
        : iscsi_read16_task(iscsi, lun, at, block, 512, 0, 0, 0, 0, 0, done, NULL);
    if (!task) fail("queue");
    at += block / 512;
    outstanding++;
}

int main(int count, char **arguments) {
    if (count != 8) return 2;
    is_write = arguments[1][0] == 'w';
    block = atoi(arguments[3]);
    int depth = atoi(arguments[4]);
    double seconds = atof(arguments[5]), warm = atof(arguments[6]);
    think_us = atol(arguments[7]);
    iscsi = iscsi_create_context("iqn.2026-11.org.example:initiator");
    struct iscsi_url *url = iscsi_parse_full_url(iscsi, arguments[2]);
    if (!url) fail("URL");
    iscsi_set_targetname(iscsi, url->target);
    iscsi_set_session_type(iscsi, ISCSI_SESSION_NORMAL);
    iscsi_set_header_digest(iscsi, ISCSI_HEADER_DIGEST_NONE_CRC32C);
    lun = url->lun;
    if (iscsi_full_connect_sync(iscsi, url->portal, lun)) fail("log in");
    struct scsi_task *task = iscsi_readcapacity16_sync(iscsi, lun);
    struct scsi_readcapacity16 *capacity = task ? scsi_datain_unmarshall(task) : NULL;
    if (!capacity) fail("READ CAPACITY");
    blocks = capacity->returned_lba + 1;
    buffer = malloc(block);
    memset(buffer, 0x5a, block);
    begin = now() + warm;
    end = begin + seconds;
    for (int round = 0; now() < end; round++) {
        if (outstanding == 0) {
            struct timespec pause = {think_us / 1000000, think_us % 1000000 * 1000};
            if (round > 0 && think_us) nanosleep(&pause, NULL);
            for (int i = 0; i < depth; i++) issue();
        }
        struct pollfd poller = {.fd = iscsi_get_fd(iscsi), .events = iscsi_which_events(iscsi)};
        poll(&poller, 1, 1000);
        if (iscsi_service(iscsi, poller.revents)) fail("connection");
    }
    printf("%.3f\n", last > first ? bytes / (last - first) / 1e6 : 0.0);
    return 0;
}
