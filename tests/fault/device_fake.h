/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device with memory of its own and late fences, as a GPU would be: what was read from disk is copied over by upload (and the host's copy
 * spoiled, so that nobody can have read it), and a fence is done only some time after the work. Everything that runs on it must not notice.
 */
#ifndef WR_TEST_DEVICE_FAKE_H
#define WR_TEST_DEVICE_FAKE_H

#include "memory/device.h"

extern uint64_t fake_uploads, fake_waits; /* what the device saw */
extern void (*fake_at_fence)(void);       /* called at each, where it is not NULL */
void fake_device(struct wr_device *);
void fake_device_shared(struct wr_device *); /* the host's memory, but late fences all the same */

#endif
